import { readFileSync } from 'node:fs';
import { Validator } from '@cfworker/json-schema';
import { parse } from 'yaml';

const FILE = new URL('../../../config/openapi.yaml', import.meta.url);

export const openapiDocument = parse(readFileSync(FILE, 'utf8'));

/** Headers that HTTP itself gives an answer. */
const OF_HTTP = ['cache-control', 'connection', 'content-length', 'content-type', 'date', 'keep-alive'];

interface Answer {
  status: number;
  headers: Record<string, string | string[] | undefined>;
  body: Buffer;
}

interface Header {
  required?: boolean;
  schema: object;
}

export interface DocumentedResponse {
  headers?: Record<string, Header>;
  content?: Record<string, { schema: object; examples?: Record<string, { value: object }> }>;
}

/** The part of the document that it points to. */
export function resolved<T>(value: T | { $ref: string }): T {
  const { $ref } = value as { $ref?: string };
  if ($ref === undefined) return value as T;
  return $ref
    .slice(2)
    .split('/')
    .reduce((at, name) => at[name], openapiDocument) as T;
}

/** The responses by status, and by `default`. */
export function responsesOf(method: string, path: string): Map<string, DocumentedResponse> {
  const { responses } = openapiDocument.paths[path][method.toLowerCase()];
  return new Map(
    Object.entries<DocumentedResponse>(responses).map(([status, one]) => [status, resolved(one)]),
  );
}

export const problemExamples = ({ content }: DocumentedResponse): [code: string, value: object][] =>
  Object.entries(content?.['application/problem+json']?.examples ?? {}).map(([code, { value }]) => [
    code,
    value,
  ]);

/** @param schema one that may point into the document */
export function complaintsAbout(schema: object, value: unknown): string[] {
  const validator = new Validator({ ...openapiDocument, ...schema }, '2020-12', false);
  return validator
    .validate(value)
    .errors.map(({ instanceLocation, error }) => `${instanceLocation} ${error}`);
}

/** Undefined if the answer is not of the gateway itself. */
export function codeOf({ headers, body }: Answer): string | undefined {
  if (headers['content-type'] !== 'application/problem+json') return undefined;
  const { type } = JSON.parse(body.toString());
  return /^urn:oncegate:problem:(.+)$/.exec(type)?.[1];
}

/** What the document does not say about this answer. Empty: everything is documented. */
export function undocumented(method: string, path: string, answer: Answer): string[] {
  const code = codeOf(answer);
  const responses = responsesOf(method, path);
  const response = responses.get(`${answer.status}`) ?? (code ? undefined : responses.get('default'));
  if (!response) return [`status ${answer.status} with a problem`];
  const [type = ''] = String(answer.headers['content-type'] ?? '').split(';', 1);
  const content = response.content?.[type];
  if (!content) return [`the media type ${type}`];
  return [
    ...undocumentedHeaders(answer, response.headers ?? {}, code !== undefined),
    ...complaintsAbout(content.schema, JSON.parse(answer.body.toString())),
    ...(code === undefined || content.examples?.[code] ? [] : [`the code ${code} under this status`]),
  ];
}

function undocumentedHeaders(answer: Answer, documented: Record<string, Header>, isOwn: boolean): string[] {
  const headers = Object.entries(documented).map(([name, header]) => [name, resolved(header)] as const);
  const complaints = headers.flatMap(([name, { required, schema }]) => {
    const value = answer.headers[name.toLowerCase()];
    if (value === undefined) return required ? [`the header ${name} is missing`] : [];
    return complaintsAbout(schema, value).map((text) => `${name}: ${text}`);
  });
  if (!isOwn) return complaints;
  const known = [...OF_HTTP, ...headers.map(([name]) => name.toLowerCase())];
  const others = Object.keys(answer.headers).filter((name) => !known.includes(name));
  return [...complaints, ...others.map((name) => `the header ${name}`)];
}
