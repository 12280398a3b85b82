import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope } from '../../lib/brands.ts';
import type { Mark } from '../../store/copy-mark.ts';
import type {
  CopiedRecord,
  CopySide,
  Expected,
  LogEntry,
  Replacement,
  Snapshot,
  UnreadableSnapshot,
} from '../../store/copy-side.ts';

/** What became of the keys that were not completed when the source was sealed. */
export interface FollowedCounts {
  completed: number;
  released: number;
  /** In doubt on the source, or their owners show no life. They are in doubt on the destination, too. */
  inDoubt: number;
  /** Completed on the source, while the destination has another execution of the key: it was resolved or restarted there. */
  stale: number;
}

/** `settled`: nothing had to be written. */
type Followed = keyof FollowedCounts | 'executing' | 'settled';

const POLL_MS = 200;
const SCOPES_PER_STEP = 250;

/**
 * Follows the executions whose owners run on the source while the destination serves already. Writes to the destination what
 * became of each, under its token, as a late owner would. As long as an owner is alive, it keeps its lease at the destination.
 */
export class Followers {
  readonly #from: CopySide;
  readonly #to: CopySide;
  readonly #mark: Mark;
  readonly #found = new Map<Scope, Followed>();

  constructor(from: CopySide, to: CopySide, mark: Mark) {
    this.#from = from;
    this.#to = to;
    this.#mark = mark;
  }

  /**
   * Resolves when no owner on the source is alive. `open`: the keys to follow, with the token under which each was copied.
   * `readLog` adds to it what the source has logged since.
   */
  async follow(open: ReadonlyMap<Scope, LogEntry>, readLog: () => Promise<void>): Promise<FollowedCounts> {
    await this.#step([...open.values()]);
    for (;;) {
      await readLog();
      const alive = [...open.values()].filter(
        ({ scope }) => (this.#found.get(scope) ?? 'executing') === 'executing',
      );
      if (alive.length === 0) break;
      await this.#step(alive);
      await sleep(POLL_MS);
    }
    const counts: FollowedCounts = { completed: 0, released: 0, inDoubt: 0, stale: 0 };
    for (const found of this.#found.values())
      if (found !== 'executing' && found !== 'settled') counts[found]++;
    return counts;
  }

  async #step(entries: readonly LogEntry[]): Promise<void> {
    for (let at = 0; at < entries.length; ) {
      const step = entries.slice(at, at + SCOPES_PER_STEP);
      const sources = await this.#from.read(step.map(({ scope }) => scope));
      // A source that was emptied has no released keys: its mark is gone as well.
      await requireMark(this.#from, 'moved', this.#mark.copyId);
      const destinations = await this.#to.read(sources.map(({ scope }) => scope));
      const decisions = destinations.map((destination, i) =>
        decide(step[i] as LogEntry, sources[i] as Snapshot | UnreadableSnapshot, destination),
      );
      const replacements = decisions.map(({ replacement }) => replacement);
      const written = await this.#to.write(
        this.#mark,
        replacements.filter((replacement) => replacement !== undefined),
      );
      for (const { scope, found, replacement } of decisions) {
        // The record of the destination has changed since it was read: decide again.
        const isWritten = replacement === undefined || written.shift();
        this.#found.set(scope, isWritten ? found : 'executing');
      }
      at += decisions.length;
    }
  }
}

/** @throws if the store has another mark, or none */
export async function requireMark(side: CopySide, state: Mark['state'], copyId: string): Promise<void> {
  const mark = await side.readMark();
  if (mark?.state !== state || mark.copyId !== copyId)
    throw new Error(`${side.name} has lost the mark of this copy: was it emptied or replaced?`);
}

interface Decision {
  scope: Scope;
  found: Followed;
  replacement?: Replacement | undefined;
}

/** What to write to the destination for one key. The rules are those of the late writes of an owner, see `Store`. */
function decide(
  { scope, token }: LogEntry,
  source: Snapshot | UnreadableSnapshot,
  destination: Snapshot | UnreadableSnapshot,
): Decision {
  if (source.unreadable !== undefined || destination.unreadable !== undefined)
    return { scope, found: 'inDoubt' };
  const { record } = source;
  const copy = destination.record;
  if (!record) {
    const isOwned = copy?.token.equals(token) && copy.state !== 'completed';
    if (!isOwned) return { scope, found: 'settled' };
    return { scope, found: 'released', replacement: replaceBy(scope, undefined, copy) };
  }
  const isSame = copy?.token.equals(record.token) ?? false;
  if (record.state === 'completed') {
    if (copy && !isSame) return { scope, found: 'stale' };
    if (copy?.state === 'completed') return { scope, found: 'settled' };
    return { scope, found: 'completed', replacement: replaceBy(scope, doubted(record, copy), copy) };
  }
  const isAlive = record.state === 'executing' && record.aliveForMs > 0;
  const found = isAlive ? 'executing' : 'inDoubt';
  if (!copy || !isSame || copy.state !== 'executing') return { scope, found };
  const isNews = isAlive ? record.aliveForMs > copy.aliveForMs + POLL_MS : record.state === 'in_doubt';
  return { scope, found, replacement: isNews ? replaceBy(scope, doubted(record, copy), copy) : undefined };
}

/** Gateways on the destination may have answered `in_doubt`: then the record is kept as long as one that was in doubt. */
function doubted(record: CopiedRecord, copy: CopiedRecord | undefined): CopiedRecord {
  const isDoubted = !copy || copy.wasInDoubt || copy.state === 'in_doubt' || copy.aliveForMs === 0;
  if (!isDoubted) return record;
  const expiresInMs = record.state === 'completed' ? record.lifetimes.inDoubtRetentionMs : record.expiresInMs;
  return { ...record, wasInDoubt: true, expiresInMs };
}

function replaceBy(scope: Scope, record: CopiedRecord | undefined, copy: Expected | undefined): Replacement {
  const snapshot = { scope, record, audit: [], auditExpiresInMs: 0 };
  return { snapshot, expected: copy ?? 'absent', withAudit: false };
}
