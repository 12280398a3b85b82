/** One secret key as a source knows it: everything but the key itself. */
export interface KeyEntry {
  /** HMAC of the secret key, to find its entry again. Cannot be used to log in. Must not be logged. */
  readonly digest: string;
  readonly merchantCode: string;
  /** Safe to log. */
  readonly keyId: string;
  /** Operation names; `*` is all of them. */
  readonly scopes: readonly string[];
  /** Milliseconds since the epoch from which the key is valid; -Infinity: always was. */
  readonly notBeforeMs: number;
  /** From here on it is not any more; Infinity: never ends. */
  readonly expiresAtMs: number;
  /** From here on it is revoked; Infinity: is not. */
  readonly revokedAtMs: number;
}

/** All three comparisons are always made: how long the answer takes must not tell which of them failed. */
export function isInForce(entry: KeyEntry, nowMs: number): boolean {
  const started = Number(entry.notBeforeMs <= nowMs);
  const unexpired = Number(nowMs < entry.expiresAtMs);
  const unrevoked = Number(nowMs < entry.revokedAtMs);
  return (started & unexpired & unrevoked) === 1;
}

/** How a key source is, for the readiness check. Holds no secrets. */
export interface KeySourceHealth {
  readonly ok: boolean;
  /** One line for an operator. */
  readonly detail: string;
  /** Wall clock milliseconds of the last successful load. */
  readonly loadedAtMs: number;
  /** Keys in force or not: all that the source holds. */
  readonly keys: number;
}

/** Where secret keys are looked up. */
export interface KeySource {
  /** Another one whenever the keys have changed: what was found under an earlier one means nothing any more. */
  readonly generation: number;
  /** The entry of a secret key, valid now or not. Takes the same work for every key, known or unknown. */
  find(secret: string): KeyEntry | undefined;
  /** The entry that the secret key of an earlier entry has now. */
  again(earlier: KeyEntry): KeyEntry | undefined;
  /** All keys, in force or not. */
  entries(): Iterable<KeyEntry>;
  /** Reads the keys at once. Keys that cannot be read stay as they were. */
  reload(): Promise<void>;
  /** Calls `listener` each time that the keys have changed. */
  onChange(listener: () => void): void;
  health(): KeySourceHealth;
  close(): void;
}
