import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { Backend } from './backend.ts';
import { check, nameOfEntry, type Resolved } from './checker.ts';
import { allFaults, draw, type Fault, type World } from './faults.ts';
import { configOf, GATEWAYS, LEASE_MS } from './gateway-config.ts';
import { GatewayProcess } from './gateways.ts';
import { History } from './history.ts';
import { isCompleted, isInDoubt, type Life, Merchants } from './merchants.ts';
import { type Listed, listInDoubt, resolveInDoubt } from './operators.ts';
import { Random } from './random.ts';
import { type Sample, takeSamples } from './samples.ts';
import { recordStalls } from './stalls.ts';
import { startTopology } from './start-topology.ts';
import { type Summary, summaryOf } from './summary.ts';
import type { StoreName, Unsafe } from './topology.ts';

export interface RunOptions {
  seed: number;
  minutes: number;
  store: StoreName;
  unsafe: Unsafe | undefined;
  /** New keys a second. */
  ratePerS: number;
  /** At most this many faults at once. */
  together: number;
  /** Only faults with this text in their names; or {@link NO_FAULTS}. */
  only: string;
  /** How long merchants may wait for a final answer after a heal (p99). */
  recoverWithinMs: number;
  progress(line: string): void;
}

/** Nothing is broken, and the gateways' memory and descriptors must stay flat. */
export const NO_FAULTS = 'none';
const HOLD_MS = { from: 300, to: 2200 };
const PAUSE_MS = { from: 200, to: 1000 };
/** How many open keys are watched after a heal; the retries of their merchants settle the others. */
const WATCHED = 60;
const GIVE_UP_AFTER_MS = 15_000;
/** How often the run tries a fault that cannot be injected, before it ends without that fault. */
const MOST_TRIES = 3;
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
  try {
    await backend.start();
    for (const missing of topology.missing ?? [])
      options.progress(`WARNING: NOT TESTED on this machine: ${missing}`);
    for (let i = 0; i < GATEWAYS; i++) {
      // The wall clock of the first one can be moved.
      gateways.push(new GatewayProcess(i, folder, history, configOf(topology, backend, i), i === 0));
    }
    await Promise.all(gateways.map((gateway) => gateway.start()));
    // A separate random stream, so that the number of calls does not change which faults are drawn.
    const random = new Random(options.seed + 1);
    const merchants = new Merchants(history, random, gateways, options.ratePerS);
    return await new Run(options, { folder, history, backend, topology, gateways, merchants }).run();
  } finally {
    await witness.terminate();
    await Promise.all(gateways.map((gateway) => gateway.stop()));
    await backend.stop();
    await topology.stop();
    await history.close();
  }
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

  constructor(options: RunOptions, world: World) {
    this.#options = options;
    this.#world = world;
    this.#random = new Random(options.seed);
    this.#merchants = world.merchants;
    const all = allFaults(world);
    this.#faults = all.filter(({ name }) => name.includes(options.only));
    if (this.#faults.length === 0 && options.only !== NO_FAULTS)
      throw new Error(`no fault has ${JSON.stringify(options.only)} in its name`);
    for (const { name } of this.#faults) this.#injected.set(name, 0);
  }

  async run(): Promise<Summary> {
    const startedMs = performance.now();
    const timer = setInterval(() => this.#printProgress(startedMs), PROGRESS_EVERY_MS);
    const ended = new AbortController();
    const isCalm = this.#faults.length === 0;
    const samples = isCalm ? takeSamples(this.#world.gateways, ended.signal) : Promise.resolve([]);
    samples.catch(() => {});
    try {
      this.#merchants.start();
      await this.#breakAll(startedMs + this.#options.minutes * 60_000);
      ended.abort();
      this.#present = ['ending'];
      await this.#merchants.stop();
      await this.#reviveAll();
      await this.#lastCalls();
      return await this.#verdict(Math.round((performance.now() - startedMs) / 1000), await samples);
    } finally {
      clearInterval(timer);
      ended.abort();
      await this.#merchants.close();
    }
  }

  /**
   * Injects faults, round after round, until `endMs`. If some fault has not been injected by then, the rounds continue until each was
   * injected once or tried {@link MOST_TRIES} times: the run has not tested a fault that was never injected.
   */
  async #breakAll(endMs: number): Promise<void> {
    const { together } = this.#options;
    const tries = new Map<Fault, number>();
    const isIncomplete = () =>
      this.#faults.some(
        (fault) => this.#injected.get(fault.name) === 0 && (tries.get(fault) ?? 0) < MOST_TRIES,
      );
    let deck: Fault[] = [];
    while (performance.now() < endMs || isIncomplete()) {
      if (deck.length === 0) deck = this.#random.shuffled(this.#faults);
      const { drawn, left } = draw(deck, this.#random.between(Math.ceil(together / 2), together));
      for (const fault of drawn) tries.set(fault, (tries.get(fault) ?? 0) + 1);
      // A fault that could not be injected together with others is tried again later.
      deck = [...left, ...(await this.#round(drawn))];
    }
  }

  /** Injects faults, waits, heals them, and measures the recovery. Returns the faults that could not be injected. */
  async #round(faults: readonly Fault[]): Promise<Fault[]> {
    this.#present = faults.map(({ name }) => name);
    const struck = await Promise.all(faults.map((fault) => this.#strike(fault)));
    // A gateway that two faults hit at once may still be down.
    await this.#reviveAll();
    this.#present = [];
    await this.#recover();
    await sleep(this.#random.between(PAUSE_MS.from, PAUSE_MS.to));
    return faults.filter((_, i) => !struck[i]);
  }

  async #strike(fault: Fault): Promise<boolean> {
    const { history, gateways } = this.#world;
    const { name, of, holdMs = this.#random.between(HOLD_MS.from, HOLD_MS.to), stopsCompleting } = fault;
    const gateway = fault.only ?? this.#random.pick(gateways);
    const note = (text: string) => history.add({ event: 'note', atMs: history.nowMs(), text });
    const hit = of === 'gateway' ? { gateway: gateway.number } : {};
    const stops = stopsCompleting === undefined ? {} : { stopsCompleting };
    history.add({ event: 'fault', atMs: history.nowMs(), of, name, ...hit, ...stops });
    let struck = false;
    try {
      await fault.inject(gateway);
      struck = true;
      this.#injected.set(name, (this.#injected.get(name) ?? 0) + 1);
      await sleep(holdMs);
    } catch (error) {
      note(`${name}: ${(error as Error).message}`);
    }
    await fault.heal(gateway);
    history.add({ event: 'healed', atMs: history.nowMs(), of, name });
    return struck;
  }

  async #reviveAll(): Promise<void> {
    await Promise.all(this.#world.gateways.map((gateway) => gateway.revive()));
  }

  /** Merchants without a final answer now retry fast, and one new key is sent to each gateway. */
  async #recover(): Promise<void> {
    const unknowing = this.#merchants.open.filter(({ known }) => known === 'nothing');
    const watched = this.#random.shuffled(unknowing).slice(0, WATCHED);
    const fresh = this.#world.gateways.map(() => this.#merchants.newLife());
    const startedMs = performance.now();
    await Promise.all(
      [...watched, ...fresh].map(async (life, i) => {
        await this.#untilKnown(life, 'merchant', i);
        this.#recoveriesMs.push(performance.now() - startedMs);
      }),
    );
  }

  /** Retries until the answer says what became of the payout, or for long enough. */
  async #untilKnown(life: Life, as: 'merchant' | 'last', at: number): Promise<void> {
    const endMs = performance.now() + GIVE_UP_AFTER_MS;
    for (let turn = at; performance.now() < endMs; turn++) {
      const ended = await this.#merchants.call(life, as, turn, { preferWaitS: 1 });
      if (isCompleted(ended) || isInDoubt(ended)) return;
      await sleep(100);
    }
  }

  /** Sends every key once more, when everything is healed and a lease has passed. */
  async #lastCalls(): Promise<void> {
    await sleep(LEASE_MS + 500);
    const queue = this.#merchants.lives.entries();
    const lane = async () => {
      for (const [i, life] of queue) await this.#untilKnown(life, 'last', i);
    };
    await Promise.all(Array.from({ length: 64 }, lane));
  }

  /** Operators read the backend's ledger and resolve keys in doubt; then the merchants retry. */
  async #resolveDoubts(listed: readonly Listed[], paid: ReadonlySet<string>): Promise<Resolved[]> {
    const resolved: Resolved[] = [];
    for (const [i, record] of this.#random.shuffled(listed).slice(0, RESOLVED).entries()) {
      const name = `${record.merchant} ${record.key}`;
      const life = this.#merchants.lifeOf(name);
      const gateway = this.#world.gateways[i % GATEWAYS];
      if (!life || !gateway) throw new Error(`no merchant asked for ${name}`);
      const as = paid.has(name) ? 'completed' : 'released';
      const refusal = await resolveInDoubt(gateway.adminPort, record.recordId, as);
      const ended = await this.#merchants.call(life, 'resolved', i, { preferWaitS: 1 });
      resolved.push({ name, as, ended, refusal });
    }
    return resolved;
  }

  async #verdict(seconds: number, samples: readonly Sample[]): Promise<Summary> {
    const { history, backend, folder, gateways, topology } = this.#world;
    const { seed, store, unsafe, recoverWithinMs } = this.#options;
    const listed = await listInDoubt((gateways[0] as GatewayProcess).configFile);
    writeFileSync(join(folder, 'in-doubt.json'), JSON.stringify(listed, undefined, 2), { mode: 0o600 });
    const before = await backend.ledger();
    const resolved = await this.#resolveDoubts(listed, new Set(before.map(nameOfEntry)));
    const evidence = {
      events: history.events,
      payouts: await backend.ledger(),
      listed: new Set(listed.map(({ merchant, key }) => `${merchant} ${key}`)),
      resolved,
      ...{ recoveriesMs: this.#recoveriesMs, recoverWithinMs },
      failsOver: ['sentinel', 'replicas', 'postgres-standby'].includes(store),
      samples,
    };
    const faults = Object.fromEntries(this.#injected);
    const { missing = [] } = topology;
    const run = { seed, store, unsafe, seconds, folder, faults, missing, keys: this.#merchants.lives.length };
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
