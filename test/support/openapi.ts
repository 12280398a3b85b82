import { readFileSync } from 'node:fs';
import { Validator } from '@cfworker/json-schema';
import { parse } from 'yaml';

const FILE = new URL('../../config/openapi.yaml', import.meta.url);

export const openapiDocument = parse(readFileSync(FILE, 'utf8'));

/** Headers that HTTP itself gives an answer. */
const OF_HTTP = ['cache-control', 'connection', 'content-length', 'content-type', 'date', 'keep-alive'];

interface Answer {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  body: Buffer;
}

type Documented<T> = T & { $ref?: string };

function resolved<T extends object>(value: Documented<T>): T {
  if (value.$ref === undefined) return value;
  const path = value.$ref.slice(2).split('/');
  return path.reduce((at, name) => at[name], openapiDocument) as T;
}

/** @param schema one that may point into the document */
function complaintsAbout(schema: object, value: unknown): string[] {
  const validator = new Validator({ ...openapiDocument, ...schema }, '2020-12', false);
  const { valid, errors } = validator.validate(value);
  return valid ? [] : errors.map(({ instanceLocation, error }) => `${instanceLocation} ${error}`);
}

const encoded = (part: string) => part.replaceAll('~', '~0').replaceAll('/', '~1');

/** Whether an answer is of the gateway itself. */
export function codeOf({ headers, body }: Answer): string | undefined {
  if (headers['content-type'] !== 'application/problem+json') return undefined;
  const { type } = JSON.parse(body.toString());
  return /^urn:oncegate:problem:(.+)$/.exec(type)?.[1];
}

/** What the document does not say about this answer. Empty: everything is documented. */
export function undocumented(method: string, path: string, answer: Answer): string[] {
  const operation = openapiDocument.paths[path][method.toLowerCase()];
  const own = codeOf(answer) !== undefined;
  const { [answer.status]: exact, default: others } = operation.responses;
  if (!exact && own) return [`status ${answer.status} with a problem`];
  const place = exact ? `${answer.status}` : 'default';
  const response = exact ?? others;
  // The backend can answer with a status that the gateway's own answers have too.
  if (!own && exact && !exact.content?.['application/json']) return [];
  return [
    ...undocumentedHeaders(answer, response.headers ?? {}, own),
    ...undocumentedBody(answer, method, path, place),
  ];
}

function undocumentedHeaders(answer: Answer, documented: Record<string, object>, isOwn: boolean): string[] {
  const complaints: string[] = [];
  for (const [name, described] of Object.entries(documented)) {
    const { required = false, schema } = resolved(described as { required?: boolean; schema: object });
    const value = answer.headers[name.toLowerCase()];
    if (value === undefined && required) complaints.push(`the header ${name} is missing`);
    if (value !== undefined)
      complaints.push(...complaintsAbout(schema, value).map((text) => `${name}: ${text}`));
  }
  if (!isOwn) return complaints;
  const known = [...OF_HTTP, ...Object.keys(documented).map((name) => name.toLowerCase())];
  const others = Object.keys(answer.headers).filter((name) => !known.includes(name));
  return [...complaints, ...others.map((name) => `the header ${name} is not documented`)];
}

function undocumentedBody({ headers, body }: Answer, method: string, path: string, place: string): string[] {
  const [type = ''] = String(headers['content-type'] ?? '').split(';', 1);
  const { content } = openapiDocument.paths[path][method.toLowerCase()].responses[place];
  if (!content) return [];
  if (!content[type]) return [`the media type ${type} is not documented`];
  const pointer = ['paths', path, method.toLowerCase(), 'responses', place, 'content', type, 'schema'];
  return complaintsAbout({ $ref: `#/${pointer.map(encoded).join('/')}` }, JSON.parse(body.toString()));
}
