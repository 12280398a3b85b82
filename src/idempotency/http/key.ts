import { valuesOf } from '../../kernel/fields.ts';

/** What the headers of a request say about its idempotency key. */
export type KeyReading =
  | { kind: 'none' }
  | { kind: 'key'; key: string }
  | { kind: 'invalid'; reason: string };

const PRINTABLE = /^[\x20-\x7e]{1,255}$/;
/** Two quotes around 255 characters, each of which may be escaped. A longer value is refused unread. */
const MAX_QUOTED_CHARS = 2 * 255 + 2;
/** A structured field's string (RFC 9651 §3.3.3): quoted, with \" and \\ as its only escapes. */
const QUOTED = /^"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"$/;

/**
 * Reads the idempotency key from the raw header lines (names and values alternate). `req.headers` would not do: Node joins
 * repeated lines with a comma, and a key may contain commas.
 *
 * @param names header names in lower case. In `idempotency-key` a quoted string is unquoted, as in the IETF draft.
 */
export function readKey(rawHeaders: readonly string[], names: readonly string[]): KeyReading {
  let key: string | undefined;
  let keyHeader: string | undefined;
  for (const name of names) {
    const [text, another] = valuesOf(rawHeaders, name);
    if (text === undefined) continue;
    if (another !== undefined) return { kind: 'invalid', reason: `The header ${name} was sent twice.` };
    const value = readValue(name, text);
    if (value === undefined || !PRINTABLE.test(value)) {
      return { kind: 'invalid', reason: `The header ${name} must hold 1 to 255 printable ASCII characters.` };
    }
    if (key !== undefined && key !== value) {
      return { kind: 'invalid', reason: `The headers ${keyHeader} and ${name} contradict each other.` };
    }
    key = value;
    keyHeader = name;
  }
  return key === undefined ? { kind: 'none' } : { kind: 'key', key };
}

/** Undefined: the value is a malformed quoted string. */
function readValue(name: string, text: string): string | undefined {
  if (name !== 'idempotency-key' || !text.startsWith('"')) return text;
  if (text.length > MAX_QUOTED_CHARS) return undefined;
  return text.match(QUOTED)?.[1]?.replace(/\\(["\\])/g, '$1');
}

/** How long a duplicate waits, in milliseconds. `Prefer: wait=N` (RFC 7240, N in seconds) can only shorten `waitMs`. */
export function waitOf(prefer: string, waitMs: number): number {
  const wait = prefer.match(/(?:^|[,;\s])wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])/i)?.[1];
  return wait === undefined ? waitMs : Math.min(waitMs, Number(wait) * 1000);
}
