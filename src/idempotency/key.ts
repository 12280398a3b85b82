import type { IncomingMessage } from 'node:http';
import { valuesOf } from '../requests/fields.ts';

/** What the headers of a request say about its idempotency key. */
export type KeyReading =
  | { kind: 'none' }
  /** `ignored`: the other headers, with a comma between them, that hold another key. */
  | { kind: 'key'; key: string; ignored?: string }
  | { kind: 'invalid'; reason: string };

/** The header of the IETF draft. */
const DRAFT = 'idempotency-key';
const PRINTABLE = /^[\x20-\x7e]{1,255}$/;
/** Two quotes around 255 characters, each of which may be escaped. A longer value is refused unread. */
const MAX_QUOTED_CHARS = 2 * 255 + 2;
/** A structured field's string (RFC 9651 §3.3.3): quoted, with \" and \\ as its only escapes. */
const QUOTED = /^"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"$/;

/**
 * Reads the idempotency key from the raw header lines (names and values alternate). `req.headers` would not do: Node joins
 * repeated lines with a comma, and a key may contain commas. The first header that is present decides: browsers can add
 * Idempotency-Key by themselves.
 *
 * @param names header names in lower case. In `idempotency-key` a quoted string is unquoted, as in the IETF draft.
 */
export function readKey(rawHeaders: readonly string[], names: readonly string[]): KeyReading {
  for (let i = 0; i < names.length; i++) {
    const name = names[i] as string;
    const [text, another] = valuesOf(rawHeaders, name);
    if (text === undefined) continue;
    if (another !== undefined) return { kind: 'invalid', reason: `The header ${name} was sent twice.` };
    const key = readValue(name, text);
    if (key === undefined || !PRINTABLE.test(key)) {
      return { kind: 'invalid', reason: `The header ${name} must hold 1 to 255 printable ASCII characters.` };
    }
    const differs = (other: string) =>
      valuesOf(rawHeaders, other).some((value) => readValue(other, value) !== key);
    const ignored = names
      .slice(i + 1)
      .filter(differs)
      .join(', ');
    return ignored === '' ? { kind: 'key', key } : { kind: 'key', key, ignored };
  }
  return { kind: 'none' };
}

/** The key in a header's value; undefined if the value is a malformed quoted string. */
function readValue(name: string, text: string): string | undefined {
  if (name !== DRAFT || !text.startsWith('"')) return text;
  if (text.length > MAX_QUOTED_CHARS) return undefined;
  return text.match(QUOTED)?.[1]?.replace(/\\(["\\])/g, '$1');
}

/** Whether a key comes in quotes, which the backend may take for a part of it. @param names as for {@link readKey} */
export const isQuoted = (rawHeaders: readonly string[], names: readonly string[]): boolean =>
  names.includes(DRAFT) && valuesOf(rawHeaders, DRAFT).some((text) => text.startsWith('"'));

/**
 * Takes the quotes off the key in Idempotency-Key. The backend then gets one spelling of each key: that for which a lookup asks, and
 * that of a second request under `retry`, however the merchant spells it.
 *
 * @param key as {@link readKey} has read it
 * @returns false if the header cannot hold the key without quotes, because it would be read as another key
 */
export function unquoteKey({ headers, rawHeaders }: IncomingMessage, key: string): boolean {
  const isOfKey = (text: unknown) =>
    typeof text === 'string' && text.startsWith('"') && readValue(DRAFT, text) === key;
  const lines = [...rawHeaders.keys()].filter((i) => i % 2 === 0 && rawHeaders[i]?.toLowerCase() === DRAFT);
  const quoted = lines.filter((i) => isOfKey(rawHeaders[i + 1]));
  const isChanged = isOfKey(headers[DRAFT]);
  if (quoted.length === 0 && !isChanged) return true;
  if (key.trim() !== key || key.startsWith('"')) return false;
  for (const i of quoted) rawHeaders[i + 1] = key;
  if (isChanged) headers[DRAFT] = key;
  return true;
}

/** How long a duplicate waits, in milliseconds. `Prefer: wait=N` (RFC 7240, N in seconds) can only shorten `waitMs`. */
export function waitOf(prefer: string, waitMs: number): number {
  const wait = prefer.match(/(?:^|[,;\s])wait\s*=\s*"?(\d{1,9})"?\s*(?:$|[,;])/i)?.[1];
  return wait === undefined ? waitMs : Math.min(waitMs, Number(wait) * 1000);
}
