/** Is one of these fields, names and values in turn, called so? `name` in lower case. */
export function hasField(fields: readonly string[], name: string): boolean {
  return fields.some((text, i) => isName(text, i, name));
}

/**
 * Fields in an order in which `writeHead` leaves their bytes as they are: behind a Content-Length, Node takes a
 * Content-Disposition for UTF-8, and throws where it is none.
 */
export function writable(fields: string[]): string[] {
  if (!hasField(fields, 'content-disposition')) return fields;
  const isLength = (_: string, i: number) => isName(fields[i - (i % 2)] as string, 0, 'content-length');
  return [...fields.filter((text, i) => !isLength(text, i)), ...fields.filter(isLength)];
}

/**
 * The fields of a response as an answer to this request. Its request ids are the gateway's: a backend's own X-Request-Id
 * would not be the one that the gateway's log has, and a stored one would be that of another request.
 *
 * @param originalRequestId the answer is a replay: the id of the first request. A replay is marked, and omits cookies
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
    if (!replaced.some((one) => isName(name, 0, one))) fields.push(name, response[i + 1] as string);
  }
  fields.push('X-Request-Id', requestId);
  if (originalRequestId !== undefined)
    fields.push('Idempotent-Replayed', 'true', ORIGINAL_REQUEST_ID, originalRequestId);
  return fields;
}

/** Names the first request with the key, in an answer to a later one. */
export const ORIGINAL_REQUEST_ID = 'Idempotent-Original-Request-Id';

const REQUEST_IDS = ['x-request-id', ORIGINAL_REQUEST_ID.toLowerCase()];
const NOT_REPLAYED = [...REQUEST_IDS, 'idempotent-replayed', 'set-cookie'];

function isName(text: string, i: number, name: string): boolean {
  return i % 2 === 0 && text.length === name.length && text.toLowerCase() === name;
}

/** All values of a field, one for each line. */
export function valuesOf(headers: readonly string[], name: string): string[] {
  const values: string[] = [];
  for (let i = 0; i + 1 < headers.length; i += 2) {
    const raw = headers[i] as string;
    if (raw.length === name.length && raw.toLowerCase() === name) values.push(headers[i + 1] as string);
  }
  return values;
}
