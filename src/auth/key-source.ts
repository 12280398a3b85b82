/** One secret key as a source knows it: everything but the key itself. */
export interface KeyEntry {
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
  health(): KeySourceHealth;
  close(): void;
}
