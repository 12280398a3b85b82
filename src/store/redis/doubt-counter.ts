import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope } from '../../lib/brands.ts';
import type { Clock } from '../../lib/clock.ts';
import type { Resolution } from '../contract.ts';
import {
  type CountOptions,
  type DoubtCount,
  DoubtSum,
  type ResolutionCount,
  type ResolutionSource,
} from '../doubt-count.ts';
import { type Commands, doubtsKeyOf, recordKeyOf, scripts } from './commands.ts';
import type { Leases } from './lease.ts';
import type { OpenIndex } from './open-index.ts';

/** A script that reads so many records takes a fraction of a millisecond. */
const SCOPES_PER_SCRIPT = 50;
/** So many indexes are read at once: a cluster has one for each of its 16,384 slots. */
const INDEXES_AT_ONCE = 64;
/** Slightly less than the time between two calls, so that a gateway on its own counts at each of its calls. */
const TURN = 0.9;
/** How long Redis keeps the count after the last gateway has stopped. */
const KEPT_MS = 86_400_000;
/** Missing records are looked for this often. */
const ADD_MISSING_EVERY_MS = 3_600_000;
/** If the gateway that looks for them stops, another one begins after this time. */
const ADDING_LAPSES_MS = 60_000;
/** Between two steps of that search: it may take minutes, and payouts go first. */
const PAUSE_MS = 5;

export interface DoubtCounterOptions {
  prefix: string;
  gatewayId: string;
  clock: Clock;
  isCluster: boolean;
}

/**
 * Counts the keys in doubt by the index of open records. The gateways elect the one that counts by a key with a time to live,
 * and it leaves its result to the others.
 */
export class DoubtCounter {
  readonly #commands: Commands;
  readonly #leases: Leases;
  readonly #index: OpenIndex;
  readonly #options: DoubtCounterOptions;

  constructor(commands: Commands, leases: Leases, index: OpenIndex, options: DoubtCounterOptions) {
    this.#commands = commands;
    this.#leases = leases;
    this.#index = index;
    this.#options = options;
  }

  async count({ everyMs = 0, signal }: CountOptions & { everyMs?: number }): Promise<DoubtCount> {
    const turn = new Turn(this.#commands, this.#key('turn'), this.#options.gatewayId, {
      // The count of a cluster asks all of its slots.
      lastsMs: Math.ceil(everyMs * (this.#options.isCluster ? 2 : 1) * TURN),
    });
    // If Redis is out of memory, the key of the turn cannot be set, but the records can be counted.
    const hasTurn = everyMs > 0 && (await turn.take().catch(() => true));
    const counted =
      hasTurn || everyMs === 0
        ? await this.#countForAll(turn, signal).catch((error: unknown) => {
            // Another gateway may be able to count, so it must not find the turn taken.
            if (hasTurn) void turn.giveBack();
            throw error;
          })
        : undefined;
    if (hasTurn) void this.#addMissing(signal).catch(() => {});
    const [left, resolutions] = await this.#commands.call(() =>
      Promise.all([
        counted ? null : this.#client.get(this.#key('count')),
        this.#client.hgetall(this.#key('resolutions')),
      ]),
    );
    return {
      ...(counted ?? decodeCount(left)),
      resolutions: Object.entries(resolutions).flatMap(resolutionIn),
    };
  }

  async #countForAll(turn: Turn, signal: AbortSignal | undefined): Promise<Counted> {
    const countedAtMs = this.#options.clock.wallMs();
    const { operations, oldestSinceMs } = await this.#countAll(turn, signal);
    const counted = { countedAtMs, operations, oldestSinceMs };
    const leave = () => this.#client.set(this.#key('count'), encodeCount(counted), 'PX', KEPT_MS);
    await this.#commands.call(leave).catch(() => undefined);
    return counted;
  }

  /** For a cluster: elsewhere resolve.lua counts. Never throws, because the resolution itself is written already. */
  async countResolution(field: string): Promise<void> {
    await this.#commands
      .call(() => this.#client.hincrby(this.#key('resolutions'), field, 1))
      .catch(() => undefined);
  }

  /** The hash that resolve.lua counts in. Empty in a cluster. */
  get resolutionsKey(): string {
    return this.#options.isCluster ? '' : this.#key('resolutions');
  }

  async #countAll(turn: Turn, signal: AbortSignal | undefined): Promise<DoubtSum> {
    const sum = new DoubtSum();
    const names = this.#index.names();
    for (let at = 0; at < names.length; at += INDEXES_AT_ONCE)
      await Promise.all(
        names.slice(at, at + INDEXES_AT_ONCE).map((name) => this.#countIn(name, sum, turn, signal)),
      );
    return sum;
  }

  async #countIn(name: string, sum: DoubtSum, turn: Turn, signal: AbortSignal | undefined): Promise<void> {
    const before = recordKeyOf(this.#options.prefix, '').slice(0, -1);
    const leasesHere = this.#leases.scriptMs > 0;
    for (let after: string | undefined = ''; after !== undefined; ) {
      signal?.throwIfAborted();
      await turn.keep();
      const args = [before, after, SCOPES_PER_SCRIPT, leasesHere ? 1 : 0];
      const reply = await this.#commands.run(scripts.countOpen, [name], args);
      const [last, counts, unsure, closed] = reply as [Buffer, (Buffer | number)[], Buffer[], Buffer[]];
      const scopes = closed.map((scope) => scope.toString('latin1') as Scope);
      const areOpen = await Promise.all(scopes.map((scope) => this.#index.correct(this.#commands, scope)));
      // While a slot of a cluster moved to another master, its index arrived before a record. Read this part again.
      if (areOpen.includes(true)) continue;
      for (let at = 0; at < counts.length; at += 4) {
        const [operation, inDoubt, ownerGone, since] = counts.slice(at) as [Buffer, number, number, Buffer];
        sum.add(operation.toString('latin1'), { inDoubt, ownerGone }, since.readDoubleBE());
      }
      await Promise.all(
        Array.from({ length: unsure.length / 3 }, async (_, at) => {
          const [scope, operation, since] = unsure.slice(at * 3) as [Buffer, Buffer, Buffer];
          if (await this.#leases.isHeld(scope.toString('latin1') as Scope)) return;
          sum.add(operation.toString('latin1'), { inDoubt: 1, ownerGone: 1 }, since.readDoubleBE());
        }),
      );
      after = last.toString('latin1') || undefined;
    }
  }

  /** Once in an hour, by one gateway. */
  async #addMissing(signal: AbortSignal | undefined): Promise<void> {
    const turn = new Turn(this.#commands, `${this.#key('turn')}:missing`, this.#options.gatewayId, {
      lastsMs: ADDING_LAPSES_MS,
    });
    if (!(await turn.take())) return;
    await this.#index.addMissing(this.#commands, async () => {
      await turn.keep();
      await sleep(PAUSE_MS, undefined, { ref: false });
      return signal?.aborted !== true;
    });
    if (signal?.aborted !== true) await turn.extend(ADD_MISSING_EVERY_MS);
  }

  #key(part: Parameters<typeof doubtsKeyOf>[1]): string {
    return doubtsKeyOf(this.#options.prefix, part);
  }

  get #client() {
    return this.#commands.client;
  }
}

/** A key with a time to live: the gateway that sets it does the work for all. If two gateways work at once, the result is the same. */
class Turn {
  readonly #commands: Commands;
  readonly #key: string;
  readonly #gatewayId: string;
  readonly #lastsMs: number;
  #setMs = 0;

  constructor(commands: Commands, key: string, gatewayId: string, { lastsMs }: { lastsMs: number }) {
    this.#commands = commands;
    this.#key = key;
    this.#gatewayId = gatewayId;
    this.#lastsMs = lastsMs;
  }

  /** False: another gateway has it. */
  async take(): Promise<boolean> {
    this.#setMs = performance.now();
    const set = () => this.#commands.client.set(this.#key, this.#gatewayId, 'PX', this.#lastsMs, 'NX');
    return (await this.#commands.call(set)) === 'OK';
  }

  /** Call during long work, so that no other gateway begins meanwhile. Redis may be out of memory: the work goes on. */
  async keep(): Promise<void> {
    if (this.#lastsMs > 0 && performance.now() - this.#setMs > this.#lastsMs / 3)
      await this.extend(this.#lastsMs).catch(() => {});
  }

  async giveBack(): Promise<void> {
    await this.#commands.call(() => this.#commands.client.del(this.#key)).catch(() => {});
  }

  async extend(ms: number): Promise<void> {
    this.#setMs = performance.now();
    await this.#commands.call(() => this.#commands.client.set(this.#key, this.#gatewayId, 'PX', ms));
  }
}

/** The field of resolve.lua's hash. */
export const resolutionField = (as: Resolution['as'], source: ResolutionSource): string => `${as} ${source}`;

function resolutionIn([field, number]: [string, string]): ResolutionCount[] {
  const [as, by] = field.split(' ') as [ResolutionCount['as'], ResolutionSource];
  return [{ as, by, number: Number(number) }];
}

type Counted = Omit<DoubtCount, 'resolutions'>;

const encodeCount = ({ operations, ...times }: Counted): string =>
  JSON.stringify({ ...times, operations: [...operations] });

/** What {@link encodeCount} wrote. Anything else counts as nothing, because the next count replaces it. */
function decodeCount(text: string | null): Counted {
  try {
    const { countedAtMs, oldestSinceMs, operations } = JSON.parse(text ?? '') as {
      [Member in keyof Counted]: Member extends 'operations'
        ? [string, { inDoubt: number; ownerGone: number }][]
        : Counted[Member];
    };
    const numbers = operations.flatMap(([, { inDoubt, ownerGone }]) => [inDoubt, ownerGone]);
    if (![countedAtMs, oldestSinceMs ?? 0, ...numbers].every(Number.isFinite))
      throw new TypeError('no count');
    return { countedAtMs, oldestSinceMs, operations: new Map(operations) };
  } catch {
    return { countedAtMs: 0, oldestSinceMs: undefined, operations: new Map() };
  }
}
