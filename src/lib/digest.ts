import { hash } from 'node:crypto';

/** A UTF-16 code unit takes at most three bytes in UTF-8. */
const MAX_UTF8_BYTES = 3;

/** SHA-256 (hex) over texts and a body. Each is prefixed with its length, so that different lists give different bytes. */
export function digest(texts: readonly string[], body?: Buffer): string {
  let most = body ? 4 + body.length : 0;
  for (const text of texts) most += 4 + MAX_UTF8_BYTES * text.length;
  const bytes = Buffer.allocUnsafe(most);
  let at = 0;
  for (const text of texts) {
    const length = bytes.write(text, at + 4);
    bytes.writeUInt32BE(length, at);
    at += 4 + length;
  }
  if (body) {
    at = bytes.writeUInt32BE(body.length, at);
    at += body.copy(bytes, at);
  }
  return hash('sha256', bytes.subarray(0, at), 'hex');
}
