import { z } from 'zod';
import { isSecret } from './bearer.ts';
import { readYaml } from './yaml-text.ts';

/** Everything that is wrong with a key file: a line each, beginning with the path. Holds no hash and no secret. */
export class KeyFileError extends Error {
  override readonly name = 'KeyFileError';
  readonly mistakes: readonly string[];

  constructor(mistakes: readonly string[]) {
    const more = mistakes.length - MOST_MISTAKES;
    super([...mistakes.slice(0, MOST_MISTAKES), ...(more > 0 ? [`and ${more} more`] : [])].join('\n'));
    this.mistakes = mistakes;
  }
}

/** More lines would help no operator. */
const MOST_MISTAKES = 20;

const NAME =
  'must be a string of 1 to 64 printable ASCII characters without spaces (quote it if it looks like a number)';
const TIME = 'must be a time in ISO 8601 with a zone, such as 2027-01-31T00:00:00Z';
const SCOPE = 'must be an operation name, or "*"';

/** Merchant codes go into a header and a record, key ids into the log. */
const name = z.string(NAME).regex(/^[\x21-\x7e]{1,64}$/, NAME);

/** Becomes milliseconds since the epoch. */
const time = z.iso.datetime({ offset: true, error: TIME }).transform((text) => Date.parse(text));

/** Unknown members are mistakes, or a misspelt `revokedAt` would leave a key in force. */
function mapping<Shape extends z.core.$ZodLooseShape>(shape: Shape) {
  // What is unknown is not repeated: it may be a secret key in the wrong place.
  const unknown = `has an unknown member; allowed are ${Object.keys(shape).join(', ')}`;
  return z.strictObject(shape, {
    error: ({ code }) => (code === 'unrecognized_keys' ? unknown : 'must be a mapping'),
  });
}

const key = mapping({
  /** Unique within the merchant; safe to log. */
  id: name,
  /** `hmac-sha256:` and the HMAC-SHA-256 of the secret key under `auth.pepper`, 64 hex digits. */
  hash: z
    .string('must be a string')
    .regex(/^hmac-sha256:[0-9a-fA-F]{64}$/, 'must be hmac-sha256: and 64 hex digits')
    .optional(),
  /** The secret key itself, instead of `hash`. For development. */
  dangerouslyPlainSecret: z
    .string('must be a string')
    .refine(
      isSecret,
      'must be 1 to 512 characters that a bearer token can hold: letters, digits, - . _ ~ + / and = at the end',
    )
    .optional(),
  /** Operations that the key may call. Default: all. */
  scopes: z
    .array(
      z.string(SCOPE).regex(/^[\x21\x23-\x5b\x5d-\x7e]{1,64}$/, SCOPE),
      'must be a list of operation names',
    )
    .min(1, 'must name an operation, or "*" for all')
    .default(['*']),
  /** Valid from here on. Default: always was. */
  notBefore: time.optional(),
  /** Valid until just before. Default: for ever. */
  expiresAt: time.optional(),
  /** Revoked from here on; may lie ahead. Default: not revoked. */
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
  /** What the backend gets as X-Merchant-Code. */
  code: name,
  /** For people. Means nothing to us. */
  name: z.string('must be a string').max(200, 'must have at most 200 characters').optional(),
  keys: z.array(key, 'must be a list of keys').superRefine(unique('id')),
});

const keyFile = mapping({
  merchants: z.array(merchant, 'must be a list of merchants').superRefine(unique('code')),
});

export type KeyFile = z.infer<typeof keyFile>;
export type DeclaredKey = z.infer<typeof key>;

/**
 * Reads the text of a key file.
 *
 * @throws KeyFileError with every mistake found
 */
export function parseKeyFile(bytes: Uint8Array): KeyFile {
  const read = readYaml(bytes);
  if (read.kind === 'mistakes') throw new KeyFileError(read.mistakes);
  const parsed = keyFile.safeParse(read.value);
  if (parsed.success) return parsed.data;
  throw new KeyFileError(parsed.error.issues.map(({ path, message }) => `${pathText(path)}: ${message}`));
}

/** `merchants[0].keys[1].expiresAt`; the file itself has no path. */
function pathText(path: readonly PropertyKey[]): string {
  const text = path.map((step) => (typeof step === 'number' ? `[${step}]` : `.${String(step)}`)).join('');
  return text.replace(/^\./, '') || 'the file';
}

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
