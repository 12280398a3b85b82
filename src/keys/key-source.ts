/** What a source knows about one secret key. It does not contain the secret key. */
export interface KeyEntry {
  /** HMAC of the secret key; identifies the entry across reloads. It is no credential, but must not be logged. */
  readonly digest: string;
  readonly merchantCode: string;
  /** The key's name, unique within its merchant. Safe to log. */
  readonly keyId: string;
  /** Names of operations that the key may call; `*` means all. */
  readonly scopes: readonly string[];
  /** The key is valid from this time on, in milliseconds since the epoch; -Infinity if it always was. */
  readonly notBeforeMs: number;
  /** The key is expired from this time on, in milliseconds since the epoch; Infinity if it never expires. */
  readonly expiresAtMs: number;
  /** The key is revoked from this time on, in milliseconds since the epoch; Infinity if it is not revoked. */
  readonly revokedAtMs: number;
}

/**
 * Whether a key is valid at a time. Always evaluates all three comparisons, so that the time of the answer does not
 * reveal which one failed.
 */
export function isInForce(entry: KeyEntry, nowMs: number): boolean {
  const started = Number(entry.notBeforeMs <= nowMs);
  const unexpired = Number(nowMs < entry.expiresAtMs);
  const unrevoked = Number(nowMs < entry.revokedAtMs);
  return (started & unexpired & unrevoked) === 1;
}

/** The state of a key source, for an operator. Contains no secrets. */
export interface KeySourceHealth {
  /** One line. */
  readonly detail: string;
  /** How many keys the source has, in force or not. A source without a list counts those that it has accepted. */
  readonly keys: number;
  /** Why the keys in force may be out of date. One line. */
  readonly warning?: string;
}

/** What a source without a list of keys says of a secret key. */
export type KeyAnswer =
  | { kind: 'known'; entry: KeyEntry }
  | { kind: 'unknown' }
  /** `overloaded`: too many other keys are being checked. `failed`: the backend gives no usable answer. */
  | { kind: 'unchecked'; why: 'overloaded' | 'failed' };

/** Where secret keys are looked up. */
export interface KeySource {
  /** Changes whenever the keys change: a result of `find` must not be used after that. Undefined if results must not be cached. */
  readonly generation: number | undefined;
  /** The entry of a secret key, in force or not. Does the same work for known and unknown keys. */
  find(secret: string): KeyEntry | undefined;
  /**
   * Finds out about a secret key for which `find` has no entry. Only sources without a list of keys have it. Never rejects.
   *
   * @param client the address that the key came from
   */
  ask?(secret: string, client: string): Promise<KeyAnswer>;
  /** Asks about a made-up secret key, which must be refused. If it is not, resolves to warnings for the operator, one line each. */
  askWarnings?(): Promise<string[]>;
  /** The current entry for the secret key of an earlier entry, unless the key was removed. */
  current(earlier: KeyEntry): KeyEntry | undefined;
  /** All keys, in force or not, if the source has a list of them. */
  entries(): Iterable<KeyEntry> | undefined;
  /** Reads the keys now. If they cannot be read, the old keys stay in force and the promise still resolves. */
  reload(): Promise<void>;
  /** Calls `listener` after each change of the keys. */
  onChange(listener: () => void): void;
  /** No state makes the gateway unready: keys that it has stay in force. */
  health(): KeySourceHealth;
  close(): void;
}

/** `oncegate_merchants_expiring` looks ahead this far. */
const A_WEEK_MS = 7 * 24 * 3_600_000;

/**
 * How many merchants run out of valid secret keys within seven days. Keys after a gap do not count. A merchant that has run out
 * already does not count.
 */
export function countExpiringMerchants(entries: Iterable<KeyEntry>, nowMs: number): number {
  const isWithinAWeek = (endMs: number) => nowMs < endMs && endMs <= nowMs + A_WEEK_MS;
  return [...coverageEndsOf(entries, nowMs).values()].filter(isWithinAWeek).length;
}

/**
 * When the first merchant runs out of valid secret keys, in milliseconds since the epoch. A time in the past means that one has
 * none now. Revoked keys, and merchants who have no others, do not count.
 *
 * @returns undefined if no merchant runs out of them
 */
export function firstMerchantEndMs(entries: Iterable<KeyEntry>, nowMs: number): number | undefined {
  let firstMs = Number.POSITIVE_INFINITY;
  for (const endMs of coverageEndsOf(entries, nowMs).values()) firstMs = Math.min(firstMs, endMs);
  return Number.isFinite(firstMs) ? firstMs : undefined;
}

/**
 * For each merchant, the end of its valid keys without a gap: from now on, or from its first key if none has begun. A time in the past
 * means that it has none now. Keys after a gap do not count.
 */
function coverageEndsOf(entries: Iterable<KeyEntry>, nowMs: number): Map<string, number> {
  const ends = new Map<string, number>();
  const unrevoked = [...entries].filter(({ revokedAtMs }) => nowMs < revokedAtMs);
  // Keys that have begun sort as equal, because their order does not matter. That is fast even for 100,000 keys.
  const beginMs = ({ notBeforeMs }: KeyEntry) => Math.max(notBeforeMs, nowMs);
  for (const key of unrevoked.sort((a, b) => beginMs(a) - beginMs(b))) {
    const endMs = Math.min(key.expiresAtMs, key.revokedAtMs);
    const coveredUntilMs = ends.get(key.merchantCode) ?? endMs;
    const leavesNoGap = key.notBeforeMs <= Math.max(coveredUntilMs, nowMs);
    if (leavesNoGap) ends.set(key.merchantCode, Math.max(coveredUntilMs, endMs));
  }
  return ends;
}

/** Keys that expire within this time are reported. */
const SOON_MS = 30 * 24 * 3_600_000;

/** Most names in one warning. */
const MAX_NAMES = 5;

/** Scopes that name no declared operation. */
export const BUILT_IN_SCOPES = ['*', 'undeclared', 'other'];

/** Problems with the keys that an operator should know of, one line each. Revoked keys are expected, so no line names them. */
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
  const unexpired = unrevoked.filter((entry) => !isExpired(entry));
  const soon = unexpired.filter(({ expiresAtMs }) => expiresAtMs < nowMs + SOON_MS);
  const someInForce = all.some((entry) => isInForce(entry, nowMs));
  return [
    ...(someInForce ? [] : ['no secret key is in force: every request gets 401']),
    ...(expired.length > 0 ? [`expired: ${namesOf(expired)}`] : []),
    ...(soon.length > 0 ? [`expires within 30 days: ${namesOf(soon, dateOf)}`] : []),
    ...unknownScopes(unexpired, new Set([...operationNames, ...BUILT_IN_SCOPES])),
  ];
}

/** A misspelt scope permits nothing: the merchant gets 403. */
function unknownScopes(entries: readonly KeyEntry[], known: ReadonlySet<string>): string[] {
  const uses = entries.flatMap((entry) => [...new Set(entry.scopes)].map((scope) => ({ scope, entry })));
  const unknown = uses.filter(({ scope }) => !known.has(scope));
  const keysByScope = Map.groupBy(unknown, ({ scope }) => scope);
  const named = [...keysByScope].slice(0, MAX_NAMES);
  const lines = named.map(
    ([scope, of]) => `no operation has the scope "${scope}": ${namesOf(of.map(({ entry }) => entry))}`,
  );
  const unnamed = keysByScope.size - named.length;
  return unnamed > 0 ? [...lines, `no operation has ${unnamed} more scopes`] : lines;
}

function namesOf(entries: readonly KeyEntry[], suffixOf: (entry: KeyEntry) => string = () => ''): string {
  const names = entries
    .slice(0, MAX_NAMES)
    .map((entry) => `${entry.merchantCode}/${entry.keyId}${suffixOf(entry)}`);
  const unnamed = entries.length - names.length;
  return [...names, ...(unnamed > 0 ? [`${unnamed} more`] : [])].join(', ');
}

const dateOf = ({ expiresAtMs }: KeyEntry): string => ` (${new Date(expiresAtMs).toISOString()})`;
