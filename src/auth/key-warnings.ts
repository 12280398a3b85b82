import { isInForce, type KeyEntry } from './key-source.ts';

const SOON_MS = 30 * 24 * 3_600_000;

/** More names than these make a line that operators do not read. */
const MOST_NAMES = 5;

/** Scopes that are no names of operations; `passthrough` is the older name of `undeclared`. */
const BUILT_IN_SCOPES = ['*', 'undeclared', 'other', 'passthrough'];

/** What an operator ought to know of the keys, each one line. Revoked keys are left out: they are listed on purpose. */
export function keyWarnings(
  entries: Iterable<KeyEntry>,
  operationNames: readonly string[],
  nowMs: number,
): string[] {
  const all = [...entries];
  if (all.length === 0) return ['there are no secret keys: every request gets 401'];
  const unrevoked = all.filter(({ revokedAtMs }) => nowMs < revokedAtMs);
  const isExpired = ({ expiresAtMs }: KeyEntry) => expiresAtMs <= nowMs;
  const expired = unrevoked.filter(isExpired);
  const current = unrevoked.filter((entry) => !isExpired(entry));
  const soon = current.filter(({ expiresAtMs }) => expiresAtMs < nowMs + SOON_MS);
  const someInForce = all.some((entry) => isInForce(entry, nowMs));
  return [
    ...(someInForce ? [] : ['no secret key is in force: every request gets 401']),
    ...(expired.length > 0 ? [`expired: ${namesOf(expired)}`] : []),
    ...(soon.length > 0 ? [`expires within 30 days: ${namesOf(soon, dateOf)}`] : []),
    ...unknownScopes(current, new Set([...operationNames, ...BUILT_IN_SCOPES])),
  ];
}

/** A mistyped scope permits nothing, and the merchant gets 403. */
function unknownScopes(entries: readonly KeyEntry[], known: ReadonlySet<string>): string[] {
  const users = new Map<string, KeyEntry[]>();
  for (const entry of entries) {
    for (const scope of new Set(entry.scopes)) {
      if (known.has(scope)) continue;
      const keys = users.get(scope) ?? [];
      users.set(scope, keys);
      keys.push(entry);
    }
  }
  const named = [...users].slice(0, MOST_NAMES);
  const lines = named.map(([scope, keys]) => `no operation has the scope "${scope}": ${namesOf(keys)}`);
  const left = users.size - named.length;
  return left > 0 ? [...lines, `no operation has ${left} more scopes`] : lines;
}

function namesOf(entries: readonly KeyEntry[], more: (entry: KeyEntry) => string = () => ''): string {
  const names = entries
    .slice(0, MOST_NAMES)
    .map((entry) => `${entry.merchantCode}/${entry.keyId}${more(entry)}`);
  const left = entries.length - names.length;
  return [...names, ...(left > 0 ? [`${left} more`] : [])].join(', ');
}

const dateOf = ({ expiresAtMs }: KeyEntry): string => ` (${new Date(expiresAtMs).toISOString()})`;
