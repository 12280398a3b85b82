/** Through what a key in doubt was resolved: the admin port, a lookup, or `oncegate records` on the command line. */
export const RESOLUTION_SOURCES = ['operator', 'lookup', 'command_line'] as const;
export type ResolutionSource = (typeof RESOLUTION_SOURCES)[number];

export const RESOLVED_AS = ['completed', 'released'] as const;

/** How many resolutions of one kind there were since the store was made. */
export interface ResolutionCount {
  as: (typeof RESOLVED_AS)[number];
  by: ResolutionSource;
  number: number;
}

/** The keys in doubt of one operation. */
export interface OperationDoubts {
  /** In doubt, `ownerGone` included. */
  inDoubt: number;
  /** Executing, and the owner is dead: no retry has marked these records in doubt yet. */
  ownerGone: number;
}

/** All keys in doubt that a store holds. Every gateway on the store gets the same numbers. */
export interface DoubtCount {
  /** Wall clock at the beginning of the count, Unix milliseconds. */
  countedAtMs: number;
  /** By the record's operation. Operations without keys in doubt are missing. */
  operations: ReadonlyMap<string, OperationDoubts>;
  /**
   * `createdAtMs` of the oldest one: since then a merchant has waited. A retry that marks it in doubt does not make it younger,
   * so no alert clears by that. Undefined: no key is in doubt.
   */
  oldestSinceMs: number | undefined;
  /** A pair that is missing has not occurred. */
  resolutions: readonly ResolutionCount[];
}

export interface CountOptions {
  /** Ends the counting: the promise then rejects. */
  signal?: AbortSignal | undefined;
}

/** More operations than this in one store are counted as `other`, so that damaged names cannot fill the memory. */
const MOST_OPERATIONS = 1000;

/** Adds up the keys in doubt while a store reads its records. */
export class DoubtSum {
  readonly operations = new Map<string, OperationDoubts>();
  oldestSinceMs: number | undefined;

  /** @param sinceMs `createdAtMs` of the oldest of them. Ignored if a damaged record makes it no number */
  add(operation: string, { inDoubt, ownerGone }: OperationDoubts, sinceMs: number): void {
    if (inDoubt === 0) return;
    const isFull = this.operations.size >= MOST_OPERATIONS && !this.operations.has(operation);
    const name = isFull ? 'other' : operation;
    const known = this.operations.get(name) ?? { inDoubt: 0, ownerGone: 0 };
    this.operations.set(name, {
      inDoubt: known.inDoubt + inDoubt,
      ownerGone: known.ownerGone + ownerGone,
    });
    if (Number.isFinite(sinceMs)) this.oldestSinceMs = Math.min(this.oldestSinceMs ?? sinceMs, sinceMs);
  }
}
