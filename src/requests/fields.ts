/** All values of a field, one for each line. `fields`: names and values in turn; `name`: in lower case. */
export function valuesOf(fields: readonly string[], name: string): string[] {
  const values: string[] = [];
  for (let i = 0; i + 1 < fields.length; i += 2) {
    const raw = fields[i] as string;
    if (isName(raw, name)) values.push(fields[i + 1] as string);
  }
  return values;
}

/** Whether there is a field with this name. `name`: in lower case. */
export function hasField(fields: readonly string[], name: string): boolean {
  for (let i = 0; i < fields.length; i += 2) if (isName(fields[i] as string, name)) return true;
  return false;
}

/** The names of the fields, in lower case. */
export const namesOf = (fields: readonly string[]): string[] =>
  fields.filter((_, i) => i % 2 === 0).map((name) => name.toLowerCase());

/** The fields whose names are not among these, which are in lower case. */
export function without(fields: readonly string[], names: readonly string[]): string[] {
  const kept: string[] = [];
  for (let i = 0; i + 1 < fields.length; i += 2) {
    const raw = fields[i] as string;
    let isKept = true;
    for (const name of names) if (isName(raw, name)) isKept = false;
    if (isKept) kept.push(raw, fields[i + 1] as string);
  }
  return kept;
}

/** Names the layers and stores that a request with a key has passed. */
export const HOPS = 'oncegate-hops';

/** Names the first request with the key, in an answer to a later one. */
export const ORIGINAL_REQUEST_ID = 'Idempotent-Original-Request-Id';

const REQUEST_IDS = ['x-request-id', ORIGINAL_REQUEST_ID.toLowerCase()];
const NOT_REPLAYED = [...REQUEST_IDS, 'idempotent-replayed', 'set-cookie'];

/**
 * Turns the header fields of a backend's response into those of the answer to this request. Replaces X-Request-Id with the
 * gateway's own id: the backend's id is not in the gateway's log, and a stored one belongs to another request.
 *
 * @param originalRequestId for a replay: the id of the first request. A replay says so, and omits Set-Cookie
 */
export function answerFields(
  response: readonly string[],
  requestId: string,
  originalRequestId?: string,
): string[] {
  const fields = without(response, originalRequestId === undefined ? REQUEST_IDS : NOT_REPLAYED);
  fields.push('X-Request-Id', requestId);
  if (originalRequestId !== undefined)
    fields.push('Idempotent-Replayed', 'true', ORIGINAL_REQUEST_ID, originalRequestId);
  return fields;
}

/**
 * Moves Content-Length behind Content-Disposition, so that `writeHead` does not change any bytes. Node reads a
 * Content-Disposition that follows a Content-Length as UTF-8, and throws if it is not valid UTF-8.
 */
export function writable(fields: string[]): string[] {
  if (!hasField(fields, 'content-disposition')) return fields;
  const isLength = (_: string, i: number) => isName(fields[i - (i % 2)] as string, 'content-length');
  return [...fields.filter((text, i) => !isLength(text, i)), ...fields.filter(isLength)];
}

/** Whether this is the name of the field. Compares the lengths first, because this runs for every field of every request. */
function isName(text: string, name: string): boolean {
  return text.length === name.length && text.toLowerCase() === name;
}
