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
