/** The idempotency key of a request, as its headers give it. */
export type KeyReading =
  | { kind: 'none' }
  | { kind: 'key'; key: string }
  | { kind: 'invalid'; reason: string };

const PRINTABLE = /^[\x20-\x7e]{1,255}$/;
/** Each of the 255 characters may be escaped. A longer value is not read. */
const MOST_QUOTED_CHARS = 2 * 255 + 2;
/** A structured field's string (RFC 9651 §3.3.3): quoted, with \" and \\ as its only escapes. */
const QUOTED = /^"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"$/;

/**
 * Reads the idempotency key off the header lines, names and values in turn, as they were on the wire: Node joins
 * repeated lines with a comma, which is a character that keys may have.
 *
 * @param names header names in lower case. In `idempotency-key` a quoted string is unquoted, as in the IETF draft.
 */
export function readKey(rawHeaders: readonly string[], names: readonly string[]): KeyReading {
  let key: string | undefined;
  const seen = new Set<string>();
  for (let i = 0; i + 1 < rawHeaders.length; i += 2) {
    const name = (rawHeaders[i] as string).toLowerCase();
    if (!names.includes(name)) continue;
    if (seen.has(name)) return { kind: 'invalid', reason: `The header ${name} was sent twice.` };
    seen.add(name);
    const value = readValue(name, rawHeaders[i + 1] as string);
    if (value === undefined || !PRINTABLE.test(value)) {
      return { kind: 'invalid', reason: `The header ${name} must hold 1 to 255 printable ASCII characters.` };
    }
    if (key !== undefined && key !== value) {
      return { kind: 'invalid', reason: `The headers ${[...seen].join(' and ')} contradict each other.` };
    }
    key = value;
  }
  return key === undefined ? { kind: 'none' } : { kind: 'key', key };
}

/** Undefined for a quoted string that is not well formed. */
function readValue(name: string, text: string): string | undefined {
  if (name !== 'idempotency-key' || !text.startsWith('"')) return text;
  if (text.length > MOST_QUOTED_CHARS) return undefined;
  return text.match(QUOTED)?.[1]?.replace(/\\(["\\])/g, '$1');
}

/** `Prefer: wait=N` (RFC 7240), in seconds: may shorten the wait, never lengthen it. Milliseconds. */
export function waitOf(prefer: string, waitMs: number): number {
  const wait = prefer.match(/(?:^|[,;\s])wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])/i)?.[1];
  return wait === undefined ? waitMs : Math.min(waitMs, Number(wait) * 1000);
}
