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
