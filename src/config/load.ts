import { readFileSync } from 'node:fs';
import { type Document, isMap, isScalar, LineCounter, parseDocument, type YAMLError } from 'yaml';
import * as z from 'zod';
import { adminOptions } from '../admin/admin-options.ts';
import { durationMs } from './duration.ts';
import { explain, pathText } from './explain.ts';
import { type Config, configSchema } from './schema.ts';

/** The file cannot be used. The message has one line for each mistake, and never a secret. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError';
  constructor(file: string, mistakes: readonly string[]) {
    super(mistakes.map((mistake) => `${file}: ${mistake}`).join('\n'));
  }
}

/** @throws {ConfigError} */
export function loadConfig(file: string, env: NodeJS.ProcessEnv): Config {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    throw new ConfigError(file, [`cannot be read (${(error as NodeJS.ErrnoException).code})`]);
  }
  return parseConfig(text, env, file);
}

const adminAddress = z.object({ host: adminOptions.shape.host, port: adminOptions.shape.port });

/** Where the admin port is, as far as a file says it that has mistakes, such as one that is being written. */
export function adminAddressIn(file: string, env: NodeJS.ProcessEnv): z.output<typeof adminAddress> {
  try {
    const document = parseDocument(readFileSync(file, 'utf8'), { logLevel: 'silent' });
    const [host, port] = [document.getIn(['admin', 'host']), document.getIn(['admin', 'port'])];
    return adminAddress.parse(fillPlaceholders({ host, port }, env).value);
  } catch {
    return adminAddress.parse({});
  }
}

/** @param file for messages only. @throws {ConfigError} */
export function parseConfig(text: string, env: NodeJS.ProcessEnv, file = 'configuration'): Config {
  const lineCounter = new LineCounter();
  const document = parseDocument(text, { prettyErrors: true, lineCounter, logLevel: 'error' });
  const [syntaxError] = document.errors;
  if (syntaxError) throw new ConfigError(file, [`is not valid YAML: ${reasonOf(syntaxError)}`]);
  const written = contentOf(document, file);
  if (typeof written !== 'object' || Array.isArray(written)) {
    throw new ConfigError(file, ['must be a mapping of sections, such as upstream: { url: … }']);
  }
  const { value, mistakes } = fillPlaceholders(written, env);
  if (mistakes.length > 0) throw new ConfigError(file, mistakes);
  return checkConfig(value, file, written, (path) => placeOf(document, lineCounter, path));
}

/**
 * Checks a configuration that is not in a file.
 *
 * @param name for messages: what holds the configuration
 * @param written the values to quote in messages
 * @param placeOf where an option is written, if that is known
 * @throws {ConfigError}
 */
export function checkConfig(
  value: unknown,
  name: string,
  written = value,
  placeOf: (path: readonly PropertyKey[]) => string | undefined = () => undefined,
): Config {
  const result = configSchema.safeParse(withTexts(value, withDuration));
  if (result.success) return result.data;
  throw new ConfigError(
    name,
    result.error.issues.flatMap((issue) => explain(issue, written, placeOf)),
  );
}

/** The YAML library's messages of these errors quote the file, which may have a secret there. */
const WITHOUT_QUOTE: Partial<Record<YAMLError['code'], string>> = {
  BAD_DIRECTIVE: 'a directive that YAML does not have',
  BAD_DQ_ESCAPE: 'an escape that YAML does not have',
  TAG_RESOLVE_FAILED: 'an unknown tag (!name)',
  UNEXPECTED_TOKEN: 'an unexpected character',
};

/** What is wrong, and where, in one line. */
function reasonOf({ code, message, linePos: [at] = [{ line: 1, col: 1 }] }: YAMLError): string | undefined {
  const what = WITHOUT_QUOTE[code];
  return what === undefined ? message.split('\n')[0] : `${what} at line ${at.line}, column ${at.col}`;
}

type Path = readonly (string | number)[];

/** A value with each text in it, at any depth, replaced by what `change` makes of it. */
function withTexts(value: unknown, change: (text: string, path: Path) => unknown, path: Path = []): unknown {
  if (typeof value === 'string') return change(value, path);
  if (Array.isArray(value)) return value.map((item, i) => withTexts(item, change, [...path, i]));
  if (typeof value !== 'object' || value === null) return value;
  const members = Object.entries(value);
  return Object.fromEntries(members.map(([name, item]) => [name, withTexts(item, change, [...path, name])]));
}

/** Sections whose members are names of the merchants' requests, and not options. */
const NOT_OPTIONS: Path = ['where', 'headers'];

/** Turns durations such as `24h`, and digits from the environment, into numbers, in options whose name ends in Ms. */
function withDuration(text: string, path: Path): unknown {
  if (!String(path.at(-1)).endsWith('Ms') || path.some((name) => NOT_OPTIONS.includes(name))) return text;
  return /^\d{1,15}$/.test(text) ? Number(text) : (durationMs(text) ?? text);
}

/** Where the name of an option is written, such as `line 3, column 5`. */
function placeOf(document: Document, lines: LineCounter, path: readonly PropertyKey[]): string | undefined {
  const section = path.length > 1 ? document.getIn(path.slice(0, -1), true) : document.contents;
  if (!isMap(section)) return undefined;
  const pair = section.items.find(({ key }) => isScalar(key) && String(key.value) === path.at(-1));
  const [offset] = (isScalar(pair?.key) && pair.key.range) || [];
  if (offset === undefined) return undefined;
  const { line, col } = lines.linePos(offset);
  return `line ${line}, column ${col}`;
}

/** Replaces the YAML library's message about aliases. It quotes the alias, and an unquoted secret may look like an alias. */
function contentOf(document: Document, file: string): object | string {
  try {
    return (document.toJS({ maxAliasCount: 100 }) as object | string | null) ?? {};
  } catch {
    throw new ConfigError(file, ['is not valid YAML: an alias (*name) has no anchor, or there are too many']);
  }
}

const PLACEHOLDER = /\$\{(?:([A-Za-z_][A-Za-z0-9_]*)\})?/g;

/**
 * Replaces `${NAME}` in values by the environment variable. The content of a variable is taken as it is, placeholders
 * included. A malformed placeholder is a mistake: taken literally, it could become a token that everyone can read in the file.
 */
function fillPlaceholders(
  written: unknown,
  env: NodeJS.ProcessEnv,
): { value: unknown; mistakes: readonly string[] } {
  const mistakes = new Set<string>();
  const value = withTexts(written, (text, path) =>
    text.replace(PLACEHOLDER, (_, name: string | undefined) => {
      if (name === undefined)
        mistakes.add(`${pathText(path)}: \${ must be followed by a name and }: \${NAME}`);
      else if (!env[name]) mistakes.add(`the environment has no ${name}`);
      return (name !== undefined && env[name]) || '';
    }),
  );
  return { value, mistakes: [...mistakes] };
}
