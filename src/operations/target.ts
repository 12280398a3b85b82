/**
 * Paths that the backend could read in another way than the gateway does: what two readers disagree on, in the path as
 * it came and in the path with its encoded characters decoded, once.
 */
const AMBIGUOUS = [
  { reason: 'a percent sign that encodes nothing', raw: /%(?![0-9a-f]{2})/i },
  { reason: 'an encoded slash, backslash or NUL', raw: /%(?:2f|5c|00)/i },
  { reason: 'a control character', raw: /%(?:[01][0-9a-f]|7f)/i },
  { reason: 'a character that is not printable ASCII', raw: /[^\x21-\x7e]/ },
  { reason: 'a backslash', raw: /\\/ },
  { reason: 'an empty segment', raw: /\/\// },
  // Without its parameters it is empty, and at the beginning of a path the next one is then somebody's host.
  { reason: 'an empty segment', decoded: /\/;[^/]*\// },
  { reason: 'a dot segment', decoded: /\/\.{1,2}(?:[/;?#]|$)/ },
  { reason: 'a character encoded twice', decoded: /%[0-9a-f]{2}/i },
];

/** Segments that nobody reads in another way: what almost every path consists of, and quick to see. */
const PLAIN = /^(?:\/[\w-][\w.-]*)+$/;

/** Why a target is ambiguous, or undefined. Only the path counts; a query is opaque to us, but for a fragment. */
export function ambiguityOf(target: string): string | undefined {
  if (!target.startsWith('/')) return 'no origin form';
  if (target.includes('#')) return 'a fragment';
  const path = pathOf(target);
  if (PLAIN.test(path)) return undefined;
  const once = decoded(path);
  return AMBIGUOUS.find(({ raw, decoded: after }) => raw?.test(path) || after?.test(once))?.reason;
}

/** Encoded printable ASCII decoded. */
function decoded(path: string): string {
  return path.replace(/%([2-7][0-9a-f])/gi, (_, code: string) =>
    String.fromCharCode(Number.parseInt(code, 16)),
  );
}

/** The path of a target in origin form. */
export function pathOf(target: string): string {
  const query = target.indexOf('?');
  return query < 0 ? target : target.slice(0, query);
}

const SCRIPT = /^.*?\.(?:php\d?|phtml|cgi|pl|py|rb|aspx?|jspx?|do|action)(?=\/|$)/;

/**
 * What lenient backends make of a path, the same for all spellings by which they find the same handler: other case,
 * needless encoding, path parameters, what decodes to a query, doubled and trailing slashes, trailing dots, and, behind a
 * script such as `/v1/index.php`, whatever follows (PATH_INFO). Two readings, since a parameter may hide the sign that
 * ends the path.
 */
export function lookalikesOf(path: string): string[] {
  const plain = decoded(path).toLowerCase();
  return [withoutParameters(withoutQuery(plain)), withoutQuery(withoutParameters(plain))].map((reading) => {
    const tidy = reading.replace(/\/{2,}/g, '/').replace(/[/.\s]+$/, '');
    return tidy.match(SCRIPT)?.[0] ?? tidy;
  });
}

const withoutQuery = (path: string): string => path.replace(/[?#].*$/, '');

const withoutParameters = (path: string): string => path.replace(/;[^/]*/g, '');
