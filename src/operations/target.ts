/** What makes a path ambiguous as it was sent. */
const AS_SENT = [
  { reason: 'a percent sign that encodes nothing', found: /%(?![0-9a-f]{2})/i },
  { reason: 'an encoded slash, backslash or NUL', found: /%(?:2f|5c|00)/i },
  { reason: 'a control character', found: /%(?:[01][0-9a-f]|7f)/i },
  { reason: 'a character that is not printable ASCII', found: /[^\x21-\x7e]/ },
  { reason: 'a backslash', found: /\\/ },
  { reason: 'an empty segment', found: /\/\// },
];

/**
 * Characters that some readers turn into a slash or a backslash: by Unicode's compatibility forms (U+2100 is "a/c"), or by
 * the nearest character of a Windows code page (the yen sign in 932, the won sign in 949).
 */
const LIKE_A_SEPARATOR = /[\xa5\u20a9\u2044\u2100\u2101\u2105\u2106\u2215\u2216\ufe68\uff0f\uff3c]/;

/** What makes a path ambiguous once it is decoded, and other characters are in their compatibility form. */
const AS_DECODED = [
  { reason: 'a control character', found: /[\x80-\x9f]/ },
  // Without its parameters this segment is empty. At the beginning of a path, the next segment is then read as a host.
  { reason: 'an empty segment', found: /\/;[^/]*\// },
  // Windows ignores spaces behind a name, and reads a colon as the beginning of a stream's name.
  { reason: 'a dot segment', found: /\/\s*\.{1,2}\s*(?:[/;:?#]|$)/ },
  { reason: 'a character encoded twice', found: /%(?:[0-9a-f]{2}|u[0-9a-f]{4})/i },
];

/** Segments that all readers read alike: what almost every path consists of, and quick to see. */
const PLAIN = /^(?:\/[\w-][\w.-]*)+$/;

/**
 * Why the backend could read this target as another path than the gateway does, or undefined. Only the path counts; a
 * query is opaque to us, but for a fragment.
 */
export function ambiguityOf(target: string): string | undefined {
  if (!target.startsWith('/')) return 'no origin form';
  if (target.includes('#')) return 'a fragment';
  const path = pathOf(target);
  if (PLAIN.test(path)) return undefined;
  const sent = AS_SENT.find(({ found }) => found.test(path));
  if (sent) return sent.reason;
  const decoded = decode(path);
  // Lenient readers decode an overlong %C0%AE to a dot, and %C0%AF to a slash.
  if (decoded === undefined) return 'encoded bytes that are not UTF-8';
  if (LIKE_A_SEPARATOR.test(decoded)) return 'a character that could be read as a slash or a backslash';
  const compatible = compatibleForm(decoded);
  return AS_DECODED.find(({ found }) => found.test(compatible))?.reason;
}

/** The path of a target in origin form. */
export function pathOf(target: string): string {
  const query = target.indexOf('?');
  return query < 0 ? target : target.slice(0, query);
}

/** Undefined if the encoded bytes are not valid UTF-8. */
function decode(path: string): string | undefined {
  try {
    return decodeURIComponent(path);
  } catch {
    return undefined;
  }
}

/**
 * Unicode's compatibility form (NFKC): K for the Kelvin sign, a dot for the one dot leader. In short runs, because ICU
 * sorts the marks of a long run in quadratic time.
 */
function compatibleForm(text: string): string {
  return text.replace(/\P{ASCII}{1,32}/gu, (run) => run.normalize('NFKC'));
}

/**
 * A request's path as lenient readers may read it: decoded, in lower case, without path parameters, doubled and trailing
 * slashes, trailing dots and spaces, stream names of NTFS, and what decodes to a query. Several readings, because a
 * parameter may hide the question mark that ends the path.
 */
export function tidyReadings(path: string): string[] {
  const plain = lowerCase(compatibleForm(decode(path) ?? decodeAscii(path)));
  return distinct([
    tidy(withoutParameters(withoutQuery(plain))),
    tidy(withoutQuery(withoutParameters(plain))),
  ]);
}

/**
 * Where a lenient backend may find the handler of this path. Two paths are lookalikes if they share a reading. These are
 * the tidy readings without what servers add to find a file: the name of a directory's index, the extension of a script
 * or a format, and what follows a script (PATH_INFO, or a stream's name).
 */
export function lookalikesOf(path: string): string[] {
  return distinct(tidyReadings(path).map(withoutFileName));
}

const SCRIPT =
  /(?:\/index|\/default)?\.(?:php\d?|phtml|f?cgi|pl|py|rb|aspx?|as[hm]x|jspx?|do|action)(?=[/:]|$)|\/index(?=[/:]|$)/;
const FORMAT = /(?:\/index|\/default)?\.(?:[sx]?html?|json|xml)$/;

function withoutFileName(path: string): string {
  const script = path.search(SCRIPT);
  const place = script < 0 ? path : path.slice(0, script);
  return place.replace(FORMAT, '') || '/';
}

/** For a declared path that is not valid UTF-8. No such request passes the target check. */
function decodeAscii(path: string): string {
  return path.replace(/%([2-7][0-9a-f])/gi, (_, code: string) =>
    String.fromCharCode(Number.parseInt(code, 16)),
  );
}

/** By way of capitals, because backends may compare those: the capital of a dotless i is an I. */
function lowerCase(text: string): string {
  return text.toUpperCase().replaceAll('İ', 'I').toLowerCase();
}

function withoutQuery(path: string): string {
  const query = path.search(/[?#]/);
  return query < 0 ? path : path.slice(0, query);
}

const withoutParameters = (path: string): string => path.replace(/;[^/]*/g, '');

/** The lookbehind keeps this linear: only the beginning of a run of dots is tried. */
const TRAILING_DOTS = /(?<![.\s])[.\s]+(?=\/|$)/g;

function tidy(path: string): string {
  const names = path.replace(/:[:$][^/]*/g, '').replace(TRAILING_DOTS, '');
  return names.replace(/\/{2,}/g, '/').replace(/\/$/, '') || '/';
}

const distinct = (readings: string[]): string[] => [...new Set(readings)];
