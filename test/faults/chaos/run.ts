import { mkdtempSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Backend } from './backend.ts';
import { check, type Resolved, scopeOfEntry } from './checker.ts';
import { allFaults, draw, type Fault } from './faults.ts';
import { configOf, GATEWAYS, LEASE_MS } from './gateway-config.ts';
import { GatewayProcess } from './gateways.ts';
import { History } from './history.ts';
import { isCompleted, isInDoubt, type Life, Merchants, mayAsk } from './merchants.ts';
import { type Listed, listInDoubt, resolveInDoubt } from './operators.ts';
import { Random } from './random.ts';
import { type Sample, takeSamples } from './samples.ts';
import { recordStalls } from './stalls.ts';
import { type Summary, summaryOf } from './summary.ts';
import { type StoreName, startTopology, type Topology, type Unsafe } from './topology.ts';

export interface RunOptions {
  seed: number;
  minutes: number;
  store: StoreName;
  unsafe?: Unsafe | undefined;
  /** New keys a second. */
  ratePerS: number;
  /** At most this many faults at once. */
  together: number;
  /** Only faults with this text in their names; or {@link NO_FAULTS}. */
  only: string;
  /** How long merchants may wait for a final answer after a heal (p99). Default: a lease and two seconds. */
  recoverWithinMs?: number | undefined;
  progress(line: string): void;
}

/** Nothing is broken, and the gateways' memory and descriptors must stay flat. */
export const NO_FAULTS = 'none';
const HOLD_MS = { from: 300, to: 2200 };
const PAUSE_MS = { from: 200, to: 1000 };
const CALL_TIMEOUT_MS = 8000;
/** How many open keys are watched after a heal; the retries of their merchants settle the others. */
const WATCHED = 60;
const GIVE_UP_AFTER_MS = 15_000;
/** How many keys in doubt operators resolve after the run. */
const RESOLVED = 100;
const PROGRESS_EVERY_MS = 5000;

/** One run, from starting the servers to the verdict. */
export async function run(options: RunOptions): Promise<Summary> {
  const folder = mkdtempSync(join(tmpdir(), 'oncegate-chaos-'));
  const history = new History(join(folder, 'history.jsonl'));
  const backend = new Backend(folder, history);
  const topology = await startTopology(options.store, folder, options.unsafe);
  const gateways: GatewayProcess[] = [];
  const witness = recordStalls(history);
  const stop = async () => {
    await witness.terminate();
    await Promise.all(gateways.map((gateway) => gateway.stop()));
    await backend.stop();
    await topology.stop();
    await history.close();
  };
  try {
    await backend.start();
    for (const missing of topology.missing ?? [])
      options.progress(`WARNING: NOT TESTED on this machine: ${missing}`);
    for (let i = 0; i < GATEWAYS; i++) {
      // The wall clock of the first one can be moved.
      gateways.push(new GatewayProcess(i, folder, history, configOf(topology, backend, i), i === 0));
    }
    await Promise.all(gateways.map((gateway) => gateway.start()));
    return await new Run(options, { folder, history, backend, topology, gateways }).run();
  } finally {
    await stop();
  }
}

interface World {
  folder: string;
  history: History;
  backend: Backend;
  topology: Topology;
  gateways: readonly GatewayProcess[];
}

class Run {
  readonly #options: RunOptions;
  readonly #world: World;
  readonly #random: Random;
  readonly #merchants: Merchants;
  readonly #faults: readonly Fault[];
  readonly #injected = new Map<string, number>();
  readonly #recoveriesMs: number[] = [];
  #present: string[] = [];
  #samples: Sample[] = [];

  constructor(options: RunOptions, world: World) {
    this.#options = options;
    this.#world = world;
    this.#random = new Random(options.seed);
    const { ratePerS } = options;
    const limits = { ratePerS, maxOpen: ratePerS * 20, callTimeoutMs: CALL_TIMEOUT_MS };
    // Separate random streams, so that the number of calls does not change which faults are drawn.
    this.#merchants = new Merchants(world.history, new Random(options.seed + 1), world.gateways, limits);
    const faultRandom = new Random(options.seed + 2);
    const merchants = this.#merchants;
    this.#faults = allFaults({ ...world, merchants, random: faultRandom, leaseMs: LEASE_MS }).filter(
      ({ name }) => name.includes(options.only),
    );
    if (this.#faults.length === 0 && options.only !== NO_FAULTS)
      throw new Error(`no fault has ${JSON.stringify(options.only)} in its name`);
    for (const { name } of this.#faults) this.#injected.set(name, 0);
  }

  async run(): Promise<Summary> {
    const startedMs = performance.now();
    const endMs = startedMs + this.#options.minutes * 60_000;
    // A run that never injected one of its faults proves less than it seems to.
    const longestMs = endMs + this.#options.minutes * 60_000;
    const timer = setInterval(() => this.#printProgress(startedMs), PROGRESS_EVERY_MS);
    const ended = new AbortController();
    const samples =
      this.#faults.length === 0 ? takeSamples(this.#world.gateways, ended.signal) : Promise.resolve([]);
    samples.catch(() => {});
    try {
      this.#merchants.start();
      let deck: Fault[] = [];
      while (performance.now() < endMs || (this.#isIncomplete() && performance.now() < longestMs)) {
        if (deck.length === 0) deck = this.#random.shuffled(this.#faults);
        const { together } = this.#options;
        const { drawn, left } = draw(deck, this.#random.between(Math.ceil(together / 2), together));
        // A fault that could not be injected together with others is tried again later.
        deck = [...left, ...(await this.#round(drawn))];
      }
      ended.abort();
      this.#samples = await samples;
      this.#present = ['ending'];
      await this.#merchants.stop();
      const unasked = await this.#lastCalls();
      return await this.#verdict(performance.now() - startedMs, unasked);
    } finally {
      clearInterval(timer);
      ended.abort();
      await this.#merchants.close();
    }
  }

  #isIncomplete(): boolean {
    return [...this.#injected.values()].includes(0);
  }

  /** Injects faults, waits, heals them, and measures the recovery. Returns the faults that could not be injected. */
  async #round(faults: readonly Fault[]): Promise<Fault[]> {
    this.#present = faults.map(({ name }) => name);
    const struck = await Promise.all(faults.map((fault) => this.#strike(fault)));
    // A gateway that two faults hit at once may still be down.
    await Promise.all(this.#world.gateways.map((gateway) => gateway.revive()));
    this.#present = [];
    await this.#recover();
    await sleep(this.#random.between(PAUSE_MS.from, PAUSE_MS.to));
    return faults.filter((_, i) => !struck[i]);
  }

  async #strike(fault: Fault): Promise<boolean> {
    const { history } = this.#world;
    const { name, of, holdMs = this.#random.between(HOLD_MS.from, HOLD_MS.to), stopsCompleting } = fault;
    let struck = false;
    const gateway = fault.aim?.();
    const aimed = gateway === undefined ? {} : { gateway };
    const stops = stopsCompleting === undefined ? {} : { stopsCompleting };
    history.add({ event: 'fault', atMs: history.nowMs(), of, name, ...aimed, ...stops });
    try {
      await fault.inject();
      struck = true;
      this.#injected.set(name, (this.#injected.get(name) ?? 0) + 1);
      await sleep(holdMs);
    } catch (error) {
      history.add({ event: 'note', atMs: history.nowMs(), text: `${name}: ${(error as Error).message}` });
    }
    await fault.heal();
    history.add({ event: 'healed', atMs: history.nowMs(), of, name });
    return struck;
  }

  /** Merchants without a final answer now retry fast, and one new key is sent to each gateway. */
  async #recover(): Promise<void> {
    const unknowing = this.#merchants.open.filter((life) => life.known === 'nothing' && mayAsk(life));
    const watched = this.#random.shuffled(unknowing).slice(0, WATCHED);
    const fresh = this.#world.gateways.map(() => this.#merchants.newLife());
    const startedMs = performance.now();
    await Promise.all(
      [...watched, ...fresh].map(async (life, i) => {
        await this.#untilKnown(life, 'impatient', i);
        this.#recoveriesMs.push(performance.now() - startedMs);
      }),
    );
  }

  /** Retries until the answer says what became of the payout. False: no answer did. */
  async #untilKnown(life: Life, as: 'impatient' | 'last', at: number): Promise<boolean> {
    const endMs = performance.now() + GIVE_UP_AFTER_MS;
    for (let turn = at; performance.now() < endMs; turn++) {
      const ended = await this.#merchants.call(life, as, turn, { preferWaitS: 1 });
      if (isCompleted(ended) || isInDoubt(ended)) return true;
      await sleep(100);
    }
    return false;
  }

  /**
   * Sends every key once more, when everything is healed and a lease has passed. Returns the keys that were left out because
   * their records may have expired: they would be executed again.
   */
  async #lastCalls(): Promise<Set<string>> {
    await sleep(LEASE_MS + 500);
    const queue = this.#merchants.lives.entries();
    const unasked = new Set<string>();
    const lane = async () => {
      for (const [i, life] of queue) {
        if (mayAsk(life)) await this.#untilKnown(life, 'last', i);
        else unasked.add(`${life.payout.merchant} ${life.payout.key}`);
      }
    };
    await Promise.all(Array.from({ length: 64 }, lane));
    return unasked;
  }

  /** Operators read the backend's ledger and resolve keys in doubt; then the merchants retry. */
  async #resolveDoubts(listed: readonly Listed[], paid: ReadonlySet<string>): Promise<Resolved[]> {
    const resolved: Resolved[] = [];
    for (const [i, record] of this.#random.shuffled(listed).slice(0, RESOLVED).entries()) {
      const scope = `${record.merchant} ${record.key}`;
      const life = this.#merchants.lifeOf(scope);
      const gateway = this.#world.gateways[i % GATEWAYS];
      if (!life || !gateway) throw new Error(`no merchant asked for ${scope}`);
      const as = paid.has(scope) ? 'completed' : 'released';
      const refusal = await resolveInDoubt(gateway.adminPort, record.scope, as, record.execution);
      const ended = await this.#merchants.call(life, 'resolved', i, { preferWaitS: 1 });
      resolved.push({ scope, as, ended, refusal });
    }
    return resolved;
  }

  async #verdict(tookMs: number, unasked: ReadonlySet<string>): Promise<Summary> {
    const { history, backend, folder, gateways } = this.#world;
    const [first] = gateways;
    if (!first) throw new Error('there are no gateways');
    const listed = await listInDoubt(first.configFile);
    const before = await backend.ledger();
    const resolved = await this.#resolveDoubts(listed, new Set(before.map(scopeOfEntry)));
    const evidence = {
      events: history.events,
      payouts: await backend.ledger(),
      listed: new Set(listed.map(({ merchant, key }) => `${merchant} ${key}`)),
      resolved,
      unasked,
      recoveriesMs: this.#recoveriesMs,
      recoverWithinMs: this.#options.recoverWithinMs ?? LEASE_MS + 2000,
      failsOver: ['sentinel', 'replicas'].includes(this.#options.store),
      samples: this.#samples,
    };
    const { seed, store, unsafe } = this.#options;
    const faults = Object.fromEntries(this.#injected);
    const missing = this.#world.topology.missing ?? [];
    const run = { seed, store, unsafe, tookMs, folder, faults, missing, keys: this.#merchants.lives.length };
    return summaryOf(run, evidence, check(evidence));
  }

  #printProgress(startedMs: number): void {
    const { lives, open, calls } = this.#merchants;
    const seconds = Math.round((performance.now() - startedMs) / 1000);
    const present = this.#present.join(' + ') || 'healed';
    this.#options.progress(
      `${seconds} s: ${lives.length} keys, ${calls} calls, ${open.length} open; ${present}`,
    );
  }
}
