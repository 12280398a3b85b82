const QUOTE = 0x22;
const COLON = 0x3a;
const BACKSLASH = 0x5c;
const OPENING_BRACE = 0x7b;
const CLOSING_BRACE = 0x7d;
const SPACE = 0x20;

/**
 * Whether an object in this JSON text has a member twice. Parsers disagree about such objects: some take the first member,
 * some the last. Names are compared after their escapes are decoded.
 *
 * @param json must be valid JSON, because this looks at strings, braces and colons only
 */
export function hasDuplicateMember(json: string): boolean {
  /** The names in each object that is open, from the outside in. */
  const open: Set<string>[] = [];
  for (let at = 0; at < json.length; at++) {
    const character = json.charCodeAt(at);
    if (character === OPENING_BRACE) open.push(new Set());
    else if (character === CLOSING_BRACE) open.pop();
    else if (character === QUOTE) {
      const end = endOfString(json, at + 1);
      if (isFollowedByColon(json, end + 1)) {
        const written = json.slice(at + 1, end);
        const name = written.includes('\\') ? (JSON.parse(`"${written}"`) as string) : written;
        const names = open.at(-1);
        if (names?.has(name)) return true;
        names?.add(name);
      }
      at = end;
    }
  }
  return false;
}

/** The index of the quote that ends the string whose content begins at `start`. */
function endOfString(json: string, start: number): number {
  for (let end = json.indexOf('"', start); ; end = json.indexOf('"', end + 1)) {
    let before = end;
    while (json.charCodeAt(before - 1) === BACKSLASH) before--;
    // An odd number of backslashes escapes the quote.
    if ((end - before) % 2 === 0) return end;
  }
}

function isFollowedByColon(json: string, start: number): boolean {
  let at = start;
  while (json.charCodeAt(at) <= SPACE) at++;
  return json.charCodeAt(at) === COLON;
}
