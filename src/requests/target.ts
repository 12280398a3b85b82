/** What makes a path ambiguous before it is decoded. */
const AS_SENT = [
  { reason: 'a percent sign without two hex digits', found: /%(?![0-9a-f]{2})/i },
  { reason: 'an encoded slash, backslash or NUL', found: /%(?:2f|5c|00)/i },
  { reason: 'a control character', found: /%(?:[01][0-9a-f]|7f)/i },
  { reason: 'a character that is not printable ASCII', found: /[^\x21-\x7e]/ },
  { reason: 'a backslash', found: /\\/ },
  { reason: 'an empty segment', found: /\/\// },
];

/**
 * Characters that some readers convert to a slash or a backslash: by Unicode's compatibility forms (U+2100 is "a/c"), or by
 * the best fit of a Windows code page (the yen sign in 932, the won sign in 949).
 */
const LIKE_A_SEPARATOR = /[\xa5\u20a9\u2044\u2100\u2101\u2105\u2106\u2215\u2216\ufe68\uff0f\uff3c]/;

/** What makes a path ambiguous after it is decoded and normalized to Unicode's compatibility form. */
const AS_DECODED = [
  { reason: 'a control character', found: /[\x80-\x9f]/ },
  // A reader that strips path parameters or NTFS stream names reads `/;a/b` as `//b`. At the start of a path, it could then
  // take `b` for a host.
  { reason: 'an empty segment', found: /\/(?:;|:[:$])[^/]*\// },
  // Windows ignores spaces after a file name, and takes what follows a colon for the name of an NTFS stream.
  { reason: 'a dot segment', found: /\/\s*\.{1,2}\s*(?:[/;:?#]|$)/ },
  // Also where an application does not keep sessions in paths, and within a name: /v1/in/(S(x))dex.php is /v1/index.php.
  { reason: 'a session id that ASP.NET removes', found: /\/\((?:[a-z]\([^)/]*\))+\)/i },
  { reason: 'a character encoded twice', found: /%(?:[0-9a-f]{2}|u[0-9a-f]{4})/i },
];

/** Paths that every reader reads alike. A fast path for almost all requests. */
const PLAIN = /^(?:\/[\w-][\w.-]*)+$/;

/**
 * What makes a request target ambiguous, such as `a dot segment`: the backend could take it for another path than the gateway does.
 * Checks only the path, and that there is no fragment: the gateway forwards queries as they are.
 */
export function ambiguityOf(target: string): string | undefined {
  if (!target.startsWith('/')) return 'no origin form';
  if (target.includes('#')) return 'a fragment';
  const path = pathOf(target);
  if (PLAIN.test(path)) return undefined;
  const sent = AS_SENT.find(({ found }) => found.test(path));
  if (sent) return sent.reason;
  const decoded = decode(path);
  // Lenient readers decode overlong UTF-8: %C0%AE to a dot, and %C0%AF to a slash.
  if (decoded === undefined) return 'encoded bytes that are not UTF-8';
  if (LIKE_A_SEPARATOR.test(decoded)) return 'a character that could be read as a slash or a backslash';
  const compatible = compatibleForm(decoded);
  return AS_DECODED.find(({ found }) => found.test(compatible))?.reason;
}

/** The path of a target in origin form: all before the first question mark. */
export function pathOf(target: string): string {
  const query = target.indexOf('?');
  return query < 0 ? target : target.slice(0, query);
}

/** The query of a target in origin form, without its question mark. */
export function queryOf(target: string): string {
  const query = target.indexOf('?');
  return query < 0 ? '' : target.slice(query + 1);
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
 * Unicode's compatibility form (NFKC), which turns the Kelvin sign into K and the one dot leader into a dot. Normalizes
 * short runs, because ICU sorts the combining marks of a long run in quadratic time.
 */
function compatibleForm(text: string): string {
  return text.replace(/\P{ASCII}{1,32}/gu, (run) => run.normalize('NFKC'));
}

/**
 * A path as lenient readers could read it: decoded, in lower case, without path parameters, without repeated and trailing
 * slashes, without trailing dots and spaces, without NTFS stream names, and without an encoded query. Also without a front
 * controller, because Laravel and Symfony read `/index.php/v1/pay` as `/v1/pay`.
 */
export function tidyReadings(path: string): string[] {
  const plain = lowerCase(compatibleForm(decode(path) ?? decodeAscii(path)));
  // A question mark can be inside a path parameter or a stream name, and readers differ in what they remove first.
  const beginnings = /[?#]/.test(plain)
    ? [plain, withoutParameters(plain), withoutStreams(plain), withoutStreams(withoutParameters(plain))]
    : [plain];
  const readings = beginnings.map((text) => tidy(withoutStreams(withoutParameters(withoutQuery(text)))));
  return distinct([...readings, ...readings.map((reading) => reading.replace(FRONT_CONTROLLER, ''))]);
}

/** A script that finds its route in the rest of the path. */
const FRONT_CONTROLLER = /\/[^/]+\.(?:php\d?|f?cgi|pl|py|rb)(?=\/)/;

/**
 * The readings under which a lenient backend could look up the handler of a path. Two paths are lookalikes if they share
 * one. These are the tidy readings without what servers add or ignore when they look for a file: the name of an index file,
 * the extension of a script or a format, and what follows a script (PATH_INFO, or an NTFS stream name).
 */
export function lookalikesOf(path: string): string[] {
  return distinct(tidyReadings(path).map(withoutFileName));
}

const SCRIPT =
  /(?:\/index|\/default)?\.(?:php\d?|phtml|f?cgi|pl|py|rb|aspx?|as[hm]x|jspx?|do|action)(?=[/:]|$)|\/index(?=[/:]|$)/;
const FORMAT = /(?:\/index|\/default)?\.(?:[sx]?html?|json|xml)$/;

/** What servers add at the end of a path: {@link SCRIPT} or {@link FORMAT}. */
const ENDING = new RegExp(`(?:${SCRIPT.source}|${FORMAT.source})$`);

/**
 * The readings under which a lenient backend could route a path to a pattern. Only the end of the path is removed: before
 * that, a value of a parameter can look like a script, such as an address at example.do.
 */
export function patternReadings(path: string): string[] {
  const readings = tidyReadings(path);
  return distinct([...readings, ...readings.map((reading) => reading.replace(ENDING, '') || '/')]);
}

/**
 * The readings of a request's path, and those without a format at the end of their last segment. Spring finds the route of `/v1/pay` for
 * `/v1/pay.x` and `/v1/pay.x.y` too, and Rails that of `/v1/pay` for `/v1/pay.x`, and of `/api/pay.create` for `/api/pay.create.x`. Only
 * for requests: calls that are declared with dots, such as `/api/pay.create`, do not resemble each other.
 */
export const withFormatless = (readings: readonly string[]): string[] =>
  distinct([...readings, ...readings.flatMap(formatless)]);

/** Without what follows the first dot, and without what follows the last one. */
function formatless(path: string): string[] {
  const dot = path.indexOf('.', path.lastIndexOf('/') + 2);
  return dot < 0 ? [] : [path.slice(0, dot), path.slice(0, path.lastIndexOf('.'))];
}

/** @param path in lower case; it may be a pattern */
export function withoutFileName(path: string): string {
  const script = path.search(SCRIPT);
  const base = script < 0 ? path : path.slice(0, script);
  return base.replace(FORMAT, '') || '/';
}

/** Decodes only ASCII, for a declared path that is not valid UTF-8. A request with such a path is refused as ambiguous. */
function decodeAscii(path: string): string {
  return path.replace(/%([2-7][0-9a-f])/gi, (_, code: string) =>
    String.fromCharCode(Number.parseInt(code, 16)),
  );
}

/** Converts to upper case first, because a backend may compare in upper case, where a dotless i becomes I. */
function lowerCase(text: string): string {
  return text.toUpperCase().replaceAll('İ', 'I').toLowerCase();
}

function withoutQuery(path: string): string {
  const query = path.search(/[?#]/);
  return query < 0 ? path : path.slice(0, query);
}

const withoutParameters = (path: string): string => path.replace(/;[^/]*/g, '');

const withoutStreams = (path: string): string => path.replace(/:[:$][^/]*/g, '');

/** The lookbehind keeps matching linear: the rest of the pattern is tried only at the start of a run of dots and spaces. */
const TRAILING_DOTS = /(?<![.\s])[.\s]+(?=\/|$)/g;

function tidy(path: string): string {
  return (
    path
      .replace(TRAILING_DOTS, '')
      .replace(/\/{2,}/g, '/')
      .replace(/\/$/, '') || '/'
  );
}

const distinct = (readings: string[]): string[] => [...new Set(readings)];

const SAFE_METHODS = new Set(['GET', 'HEAD', 'OPTIONS', 'TRACE']);

/** Whether a request with this method is not meant to change anything. A key has no effect on it unless it may select an operation. */
export const isSafe = (method = ''): boolean => SAFE_METHODS.has(method);
