/** The header fields in an argument of `writeHead`: an object, or an array of names and values. */
export function pairsOf(fields: unknown): [string, string | string[]][] {
  if (typeof fields !== 'object' || fields === null) return [];
  if (!Array.isArray(fields)) return Object.entries(fields);
  const flat = fields.flat() as string[];
  const byName = new Map<string, string[]>();
  for (let i = 0; i + 1 < flat.length; i += 2) {
    const name = flat[i] as string;
    byName.set(name, [...(byName.get(name) ?? []), flat[i + 1] as string]);
  }
  return [...byName].map(([name, values]) => [name, values.length === 1 ? (values[0] as string) : values]);
}

/** The arguments of `write` and `end`: (chunk?, encoding?, callback?). */
export function bodyArguments(args: unknown[]) {
  const callback = args.find((arg) => typeof arg === 'function') as ((error?: Error) => void) | undefined;
  const [chunk, encoding] = args.filter((arg) => typeof arg !== 'function');
  return { callback, chunk: bytesOf(chunk, encoding) };
}

function bytesOf(chunk: unknown, encoding: unknown): Buffer | undefined {
  if (typeof chunk === 'string')
    return Buffer.from(chunk, (encoding as BufferEncoding | undefined) ?? 'utf8');
  // A copy: the handler may use its buffer again.
  return chunk instanceof Uint8Array ? Buffer.from(chunk) : undefined;
}
