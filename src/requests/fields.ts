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
  const replaced = originalRequestId === undefined ? REQUEST_IDS : NOT_REPLAYED;
  const fields: string[] = [];
  for (let i = 0; i + 1 < response.length; i += 2) {
    const name = response[i] as string;
    if (!isOneOf(name, replaced)) fields.push(name, response[i + 1] as string);
  }
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

/** Whether this is one of the names, which are in lower case. */
export function isOneOf(text: string, names: readonly string[]): boolean {
  for (const name of names) if (isName(text, name)) return true;
  return false;
}
