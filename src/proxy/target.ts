/**
 * Request targets that the backend could read as another path than the gateway does: what two readers disagree on.
 */
const AMBIGUOUS = [
  { reason: 'a dot segment', pattern: /\/(?:\.|%2e){1,2}(?:[/;]|$)/i },
  { reason: 'an empty segment', pattern: /\/\// },
  { reason: 'a backslash', pattern: /\\/ },
  { reason: 'an encoded slash, backslash or NUL', pattern: /%(?:2f|5c|00)/i },
  { reason: 'a percent sign that encodes nothing', pattern: /%(?![0-9a-f]{2})/i },
  { reason: 'a character encoded twice', pattern: /%25[0-9a-f]{2}/i },
  { reason: 'a control character', pattern: /%(?:[01][0-9a-f]|7f)/i },
  { reason: 'a character that is not printable ASCII', pattern: /[^\x21-\x7e]/ },
];

/** Why a target is ambiguous, or undefined. Only the path counts; a query is opaque to us, but for a fragment. */
export function ambiguityOf(target: string): string | undefined {
  if (!target.startsWith('/')) return 'no origin form';
  if (target.includes('#')) return 'a fragment';
  const path = pathOf(target);
  return AMBIGUOUS.find(({ pattern }) => pattern.test(path))?.reason;
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
  const decoded = path.replace(/%[2-7][0-9a-f]/gi, (encoded) =>
    String.fromCharCode(Number.parseInt(encoded.slice(1), 16)),
  );
  const plain = decoded
    .toLowerCase()
    .replace(/;[^/]*/g, '')
    .replace(/[/.\s]+$/, '');
  return plain.match(SCRIPT)?.[0] ?? plain;
}
