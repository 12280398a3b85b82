/**
 * The `WWW-Authenticate` header of RFC 6750 §3, as the one member of a problem's headers.
 *
 * @param attributes such as `{ error: 'invalid_token' }`; a request without credentials gets none (§3.1)
 */
export function challenge(realm: string, attributes: Record<string, string> = {}): Record<string, string> {
  const pairs = Object.entries({ realm, ...attributes }).map(([name, value]) => `${name}=${quoted(value)}`);
  return { 'WWW-Authenticate': `Bearer ${pairs.join(', ')}` };
}

function quoted(value: string): string {
  return `"${value.replace(/["\\]/g, '\\$&')}"`;
}
