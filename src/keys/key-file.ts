import { Worker } from 'node:worker_threads';
import { LineCounter, parseDocument, type YAMLError } from 'yaml';
import * as z from 'zod';
import { NAME_PATTERN } from '../lib/context.ts';
import { threadFile } from '../lib/program.ts';
import { hasDuplicateMember } from '../requests/duplicate-member.ts';
import { isSecret } from './authorization-header.ts';
import { isMistyped, MISTYPED } from './secret-key.ts';

/** Most mistakes in one message. */
const MAX_MISTAKES = 20;

/** All mistakes in a key file. Each starts with its place in the file and contains no hash and no secret. */
export class KeyFileError extends Error {
  override readonly name = 'KeyFileError';
  readonly mistakes: readonly string[];

  constructor(mistakes: readonly string[]) {
    const more = mistakes.length - MAX_MISTAKES;
    super([...mistakes.slice(0, MAX_MISTAKES), ...(more > 0 ? [`and ${more} more`] : [])].join('\n'));
    this.mistakes = mistakes;
  }
}

const NAME = 'must be a string of 1 to 64 printable ASCII characters without spaces';
const TIME = 'must be a time in ISO 8601 with a zone, such as 2027-01-31T00:00:00Z';
const SCOPE = 'must be an operation name, or "*"';

/** A merchant code or a key id. */
export const keyName = z.string(`${NAME}, in quotes if it looks like a number`).regex(NAME_PATTERN, NAME);

/** Parsed to milliseconds since the epoch. */
const time = z.iso.datetime({ offset: true, error: TIME }).transform((text) => Date.parse(text));

/** A mapping without unknown members: a misspelt `revokedAt` must not leave a key in force. */
function mapping<Shape extends z.core.$ZodLooseShape>(shape: Shape) {
  // The message does not quote the unknown member, which may be a misplaced secret key.
  const unknown = `has an unknown member; allowed are ${Object.keys(shape).join(', ')}`;
  return z.strictObject(shape, {
    error: ({ code }) => (code === 'unrecognized_keys' ? unknown : 'must be a mapping'),
  });
}

/** A key as a file declares it. */
const declaredKey = mapping({
  /** Unique within the merchant. Safe to log. */
  id: keyName,
  /** `hmac-sha256:` and the HMAC-SHA-256 of the secret key under `auth.pepper`, in 64 hex digits. */
  hash: z
    .string('must be a string')
    .regex(/^hmac-sha256:[0-9a-fA-F]{64}$/, 'must be hmac-sha256: and 64 hex digits')
    .optional(),
  /** The secret key itself, instead of `hash`. For development. */
  dangerouslyPlainSecret: z
    .string('must be a string')
    .refine(
      isSecret,
      'must be 1 to 512 characters that a bearer token can have: letters, digits, - . _ ~ + / and = at the end',
    )
    .refine((secret) => !isMistyped(secret), MISTYPED)
    .optional(),
  /** Names of operations that the key may call. Default: all. */
  scopes: z
    .array(
      z.string(SCOPE).regex(/^[\x21\x23-\x5b\x5d-\x7e]{1,64}$/, SCOPE),
      'must be a list of operation names',
    )
    .min(1, 'must name an operation, or "*" for all')
    .default(['*']),
  /** The key is valid from this time on. Default: it always was. */
  notBefore: time.optional(),
  /** The key is expired from this time on. Default: it never expires. */
  expiresAt: time.optional(),
  /** The key is revoked from this time on, which may be in the future. Default: it is not revoked. */
  revokedAt: time.optional(),
}).superRefine((value, context) => {
  const mistake = (path: string[], message: string) => context.addIssue({ code: 'custom', path, message });
  if ((value.hash === undefined) === (value.dangerouslyPlainSecret === undefined)) {
    mistake([], 'must have exactly one of hash and dangerouslyPlainSecret');
  }
  if ((value.expiresAt ?? Number.POSITIVE_INFINITY) <= (value.notBefore ?? Number.NEGATIVE_INFINITY)) {
    mistake(['expiresAt'], 'must be later than notBefore');
  }
});

const merchant = mapping({
  /** Sent to the backend as X-Merchant-Code. */
  code: keyName,
  /** For readers of the file. The gateway ignores it. */
  name: z.string('must be a string').max(200, 'must have at most 200 characters').optional(),
  keys: z.array(declaredKey, 'must be a list of keys').superRefine(unique('id')),
});

/** The format of a key file. It changes with what an older version would misread. */
const KEY_FILE_FORMAT = 1;

const keyFile = mapping({
  /** Default: 1. */
  format: z
    .literal(
      KEY_FILE_FORMAT,
      `is a format that this version of oncegate does not know: it knows ${KEY_FILE_FORMAT}`,
    )
    .optional(),
  /** A digest made with `auth.pepper`. With another pepper the file is refused. Default: the pepper is not checked. */
  pepperCheck: z
    .string('must be a string')
    .regex(/^hmac-sha256:[0-9a-f]{64}$/, 'must be hmac-sha256: and 64 hex digits')
    .optional(),
  merchants: z.array(merchant, 'must be a list of merchants').superRefine(unique('code')),
});

export type KeyFile = z.infer<typeof keyFile>;
export type DeclaredKey = z.infer<typeof declaredKey>;

function unique<Member extends string>(member: Member) {
  return (items: readonly Record<Member, string>[], context: z.core.$RefinementCtx): void => {
    const first = new Map<string, number>();
    for (const [i, item] of items.entries()) {
      const seen = first.get(item[member]);
      if (seen === undefined) first.set(item[member], i);
      else context.addIssue({ code: 'custom', path: [i, member], message: `is the same as in [${seen}]` });
    }
  };
}

/**
 * Parses a key file: UTF-8, YAML 1.2 or JSON.
 *
 * @throws KeyFileError with all mistakes
 */
export function parseKeyFile(bytes: Uint8Array): KeyFile {
  const read = readYaml(bytes);
  if (read.kind === 'mistakes') throw new KeyFileError(read.mistakes);
  const parsed = keyFile.safeParse(read.value);
  if (parsed.success) return parsed.data;
  throw new KeyFileError(parsed.error.issues.map(({ path, message }) => `${pathText(path)}: ${message}`));
}

/** A path as mistakes show it, such as `merchants[0].keys[1].expiresAt`; `the file` for the document itself. */
function pathText(path: readonly PropertyKey[]): string {
  const text = path.map((step) => (typeof step === 'number' ? `[${step}]` : `.${String(step)}`)).join('');
  return text.replace(/^\./, '') || 'the file';
}

type YamlReading = { kind: 'value'; value: unknown } | { kind: 'mistakes'; mistakes: string[] };

/** Enough for a shared list of scopes in a large file, and too few for a small file to expand to a huge one. */
const MAX_ALIASES = 10_000;

/** Makes a `%YAML 1.1` directive harmless: YAML 1.1 accepts a thirteenth month and reads `no` and `on` as booleans. */
export const YAML_OPTIONS = {
  schema: 'core',
  resolveKnownTags: false,
  stringKeys: true,
  prettyErrors: false,
  logLevel: 'error',
} as const;

/** Reads one YAML document. Its mistakes give a place and a kind: the library's own messages would quote secrets. */
function readYaml(bytes: Uint8Array): YamlReading {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    return { kind: 'mistakes', mistakes: ['the file: is not UTF-8'] };
  }
  const json = readJson(text);
  if (json) return json;
  const lines = new LineCounter();
  const document = parseDocument(text, { ...YAML_OPTIONS, lineCounter: lines });
  // Warnings count as errors: after one, such as for an unknown tag, a value may not be what its author meant.
  const errors: YAMLError[] = [...document.errors, ...document.warnings];
  if (errors.length > 0)
    return { kind: 'mistakes', mistakes: errors.map((error) => mistakeOf(error, lines)) };
  try {
    return { kind: 'value', value: document.toJS({ maxAliasCount: MAX_ALIASES }) };
  } catch {
    return { kind: 'mistakes', mistakes: ['the file: has too many aliases, or an alias without an anchor'] };
  }
}

/** JSON is YAML, and JSON.parse is thirty times as fast. A duplicate member is left to the YAML parser, which says where. */
function readJson(text: string): YamlReading | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return hasDuplicateMember(text) ? undefined : { kind: 'value', value };
  } catch {
    return undefined;
  }
}

function mistakeOf(error: YAMLError, lines: LineCounter): string {
  const { line, col } = lines.linePos(error.pos[0]);
  return `line ${line}, column ${col}: is not valid YAML (${error.code.toLowerCase().replaceAll('_', ' ')})`;
}

/** The message of the thread in `key-file-thread.ts`. */
export type ThreadResult =
  | { kind: 'file'; file: KeyFile }
  | { kind: 'mistakes'; mistakes: readonly string[] };

/** YAML of this size takes some 15 ms to parse, less than a thread takes to start. */
const MAX_BYTES_HERE = 16 * 1024;

/**
 * {@link parseKeyFile} that does not hold up requests and lease renewals: large files are parsed in another thread. YAML with
 * 10,000 keys takes about a second.
 */
export async function parseKeyFileAside(bytes: Uint8Array): Promise<KeyFile> {
  if (bytes.length <= MAX_BYTES_HERE) return parseKeyFile(bytes);
  const worker = new Worker(threadFile('keys/key-file-thread'), { workerData: bytes });
  worker.unref();
  return await new Promise((resolve, reject) => {
    worker.once('message', (result: ThreadResult) => {
      if (result.kind === 'file') resolve(result.file);
      else reject(new KeyFileError(result.mistakes));
    });
    worker.once('error', reject);
    worker.once('exit', (code) => reject(new Error(`the thread that parses it exited with code ${code}`)));
  });
}
