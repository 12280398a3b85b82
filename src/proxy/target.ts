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
  { reason: 'a dot segment', decoded: /\/\.{1,2}(?:[/;?#]|$)/ },
  { reason: 'a character encoded twice', decoded: /%[0-9a-f]{2}/i },
];

/** Why a target is ambiguous, or undefined. Only the path counts; a query is opaque to us, but for a fragment. */
export function ambiguityOf(target: string): string | undefined {
  if (!target.startsWith('/')) return 'no origin form';
  if (target.includes('#')) return 'a fragment';
  const path = pathOf(target);
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
 * The same for all spellings by which a lenient backend finds the same handler: other case, needless encoding, path
 * parameters, trailing slashes and dots, and, behind a script such as `/v1/index.php`, whatever follows (PATH_INFO).
 */
export function lookalikeOf(path: string): string {
  const plain = decoded(path)
    .toLowerCase()
    .replace(/[?#].*$/, '')
    .replace(/;[^/]*/g, '')
    .replace(/\/{2,}/g, '/')
    .replace(/[/.\s]+$/, '');
  return plain.match(SCRIPT)?.[0] ?? plain;
}
