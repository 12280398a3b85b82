const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * Reads a body that must mean the same to every parser: UTF-8 without a byte order mark, one JSON object, no member twice.
 *
 * @returns the object's own members, or why the body is ambiguous
 */
export function readJsonObject(body: Buffer): { members: Record<string, unknown> } | { ambiguous: string } {
  let text: string;
  let value: unknown;
  try {
    text = decoder.decode(body);
    value = JSON.parse(text);
  } catch (error) {
    return { ambiguous: error instanceof SyntaxError ? 'it is not valid JSON' : 'it is not valid UTF-8' };
  }
  if (typeof value !== 'object' || value === null || Array.isArray(value)) {
    return { ambiguous: 'it is not a JSON object' };
  }
  if (hasDuplicateMember(text)) return { ambiguous: 'a member stands twice' };
  return { members: value as Record<string, unknown> };
}

/** Strings and brackets are all that matters in text that JSON.parse has accepted. */
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|[{}]/gs;

/** Expects valid JSON. Names count as equal when they are once their escapes are read. */
function hasDuplicateMember(json: string): boolean {
  const open: Set<string>[] = [];
  TOKENS.lastIndex = 0;
  for (let match = TOKENS.exec(json); match; match = TOKENS.exec(json)) {
    const [token, colon] = match;
    if (token === '{') open.push(new Set());
    else if (token === '}') open.pop();
    else if (colon !== undefined) {
      const written = token.slice(0, -colon.length);
      const name = written.includes('\\') ? (JSON.parse(written) as string) : written.slice(1, -1);
      const seen = open.at(-1);
      if (seen?.has(name)) return true;
      seen?.add(name);
    }
  }
  return false;
}
