/** Strings and brackets are all that matters in text that JSON.parse has accepted. */
const TOKENS = /"[^"\\]*(?:\\.[^"\\]*)*"(\s*:)?|[{}]/gs;

/** Does an object in this valid JSON name a member twice? Names count as equal when they are once their escapes are read. */
export function hasDuplicateMember(json: string): boolean {
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
