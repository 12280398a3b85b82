import { constants } from 'node:fs';
import { access } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { RecordId } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import type { StoreOptions } from '../store/store-options.ts';
import {
  type IdentityInUse,
  type Mode,
  type StoreHealth,
  type StoreIdentity,
  UnreadableIdentity,
} from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';
import { ForeignFile, type Noted, readNoted, writeNoted } from './identity-file.ts';
import type { Store } from './ledger.ts';

/** Less than half of `VISIT_LASTS_MS`, so that one visit may fail. */
const VISIT_EVERY_MS = 60_000;
/** How often a comparison that failed is tried again, and how often a refusal looks for its acceptance. */
export const LOOK_EVERY_MS = 250;

export interface StoreWatchOptions {
  file: string;
  store: Store;
  mode: Mode;
  /** Whether a store that forgot refuses starts until an operator accepts it. False: it is a warning. */
  refuses: boolean;
  /** How long a change of the store is warned about if it does not refuse. Milliseconds. */
  warnForMs: number;
  clock: Clock;
  emit: Emit;
}

/** The sections of a configuration that say how its store is watched. */
interface Watched {
  store: StoreOptions;
  idempotency: { mode: Mode; retentionMs: number };
}

/**
 * Notices that the store is another one, was emptied, or was restored from a backup: a file beside the configuration holds the
 * identity that the store had when it was last seen. Then it refuses starts, because every key that the store forgot would be paid
 * again, until an operator accepts that (accept-store.ts). No method throws, because a gateway without the file works as well.
 */
export class StoreWatch {
  /** The warnings when the gateway was opened. What is found later is logged here. */
  atStart: readonly string[] = [];
  /** The id of the store, once it was read. All masters of a cluster have one id. */
  storeId: string | undefined;
  readonly #options: StoreWatchOptions;
  #noted: StoreIdentity | undefined;
  #changed: Noted['changed'];
  /** The last acceptance in the file, as JSON. */
  #accepted: string | undefined;
  /** The connections of the store on which its identity was compared. */
  #compared: ReadonlySet<unknown> = new Set();
  #visitedAtMs = Number.NEGATIVE_INFINITY;
  #isLooking = false;
  #isOpen = false;
  #fileFailure: string | undefined;
  /** The file has the format of a later version. It is not written, so that the later version finds it as it was. */
  #isFileForeign = false;
  #identityFailure: string | undefined;
  #isOtherMode = false;
  /** Ends the looking, once it has begun. */
  #stopLooking: (() => void) | undefined;

  /** Opens the watch of a configuration's store: see {@link open}. */
  static async of(
    config: Watched,
    tools: Pick<StoreWatchOptions, 'file' | 'store' | 'clock' | 'emit'>,
  ): Promise<StoreWatch> {
    const { mode, retentionMs } = config.idempotency;
    return await StoreWatch.open({ ...tools, mode, refuses: refusesIn(config), warnForMs: retentionMs });
  }

  /** Reads the file and the store's identity, and compares them. Writes nothing. */
  static async open(options: StoreWatchOptions): Promise<StoreWatch> {
    const watch = new StoreWatch(options);
    await watch.#readFile();
    await watch.#compareAgain();
    watch.atStart = watch.warnings;
    watch.#isOpen = true;
    options.store.onConnected(() => void watch.#compareAgain());
    return watch;
  }

  private constructor(options: StoreWatchOptions) {
    this.#options = options;
  }

  /** Whether starts are refused until an operator accepts the store. */
  get isForgotten(): boolean {
    return this.#options.refuses && this.#changed !== undefined;
  }

  /** As {@link refusalOf}, for the connection that has the store's identity. */
  get refusal(): string | undefined {
    return this.refusalOf();
  }

  /**
   * Why starts and restarts of this record are refused now. A new connection may lead to another store, or to one that was emptied. In a
   * cluster a single master may have been emptied, so the connection to the record's master counts.
   */
  refusalOf(recordId?: RecordId): string | undefined {
    const { refuses, store } = this.#options;
    if (!refuses) return undefined;
    if (this.#changed)
      return `${this.#changed.what} (noticed at ${this.#changed.at}): no new key is started until an operator accepts it (oncegate store accept)`;
    return this.#compared.has(store.connectionOf(recordId))
      ? undefined
      : 'the store was connected again, and has not yet shown that it is the same';
  }

  /** What the operator should know now, one line each. */
  get warnings(): string[] {
    const { mode, warnForMs, clock } = this.#options;
    const warnings: string[] = [];
    if (this.#changed && (this.isForgotten || clock.wallMs() - Date.parse(this.#changed.at) < warnForMs))
      warnings.push(`${this.#changed.what} (noticed at ${this.#changed.at})`);
    if (this.#isOtherMode) warnings.push(OTHER_MODE[mode]);
    if (this.#fileFailure) warnings.push(this.#fileFailure);
    if (this.#identityFailure) warnings.push(this.#identityFailure);
    return warnings;
  }

  /** What the store says of itself, with what this watch knows. */
  healthOf(health: StoreHealth): StoreHealth {
    const { refusal } = this;
    const warnings = [...health.warnings, ...this.warnings];
    return { ...health, ...(health.ok && refusal && { ok: false, detail: refusal }), warnings };
  }

  /** Visits the store now and every minute, and notes its identity in the file. A second call does nothing. */
  begin(): void {
    if (this.#stopLooking) return;
    const look = () => {
      this.#stopLooking = this.#options.clock.after(LOOK_EVERY_MS, look, true);
      void this.#look();
    };
    look();
  }

  /**
   * Visits the store a last time, so that a backup which lacks the last keys has a lower count. The store's note that a gateway in
   * this mode uses it is left to expire, because other gateways in this mode may use it.
   */
  async close(): Promise<void> {
    if (!this.#stopLooking) return;
    this.#stopLooking();
    await this.visit();
  }

  /** Does what is due: looks for an acceptance, visits the store, or compares a new connection. */
  async #look(): Promise<void> {
    if (this.#isLooking) return;
    this.#isLooking = true;
    const isDue = this.#options.clock.monotonicMs() - this.#visitedAtMs >= VISIT_EVERY_MS;
    if (this.isForgotten) await this.#writeFile();
    else if (isDue) await this.visit();
    else if (!this.#isWhole) await this.#compareAgain();
    this.#isLooking = false;
  }

  /** Visits the store once, and notices whether it has changed. A store that forgot is only read. */
  async visit(): Promise<void> {
    const { store, mode, clock } = this.#options;
    this.#visitedAtMs = clock.monotonicMs();
    await this.#compareAgain();
    // A visit writes the identity to every master, which would hide that one has lost it. So each must have shown it before.
    if (!this.isForgotten && this.#isWhole) await this.#compare(() => store.visit(mode), 1);
    await this.#writeFile();
  }

  async #compareAgain(): Promise<void> {
    const { store, mode } = this.#options;
    await this.#compare(() => store.readIdentity(mode), 0);
  }

  /**
   * Compares the store's identity with the last one.
   *
   * @param grown the least by which the count must have grown
   */
  async #compare(ask: () => Promise<IdentityInUse | undefined>, grown: 0 | 1): Promise<void> {
    const { store, mode, clock, emit } = this.#options;
    // What holds when the question is asked: before its answer, another comparison may end and the store may be connected again.
    const [noted, asked] = [this.#noted, store.connections];
    const failedBefore = this.#identityFailure;
    let found: IdentityInUse | undefined;
    try {
      found = await ask();
      this.storeId = found?.id;
      this.#identityFailure = undefined;
    } catch (error) {
      // If the store is away, its identity is compared when it is back.
      if (!(error instanceof UnreadableIdentity)) return;
      this.#noteCompared(asked);
      this.#identityFailure = `${error.message}, ${NOT_NOTICED}`;
      if (this.#isOpen && !failedBefore) emit('attention', { warning: `store: ${this.#identityFailure}` });
      return;
    }
    if (this.isForgotten) return;
    const what = noted && differenceOf(noted, found, grown);
    if (what) {
      this.#changed = { at: new Date(clock.wallMs()).toISOString(), what };
      if (this.#isOpen) emit('store_changed', { warning: `store: ${what}` });
    }
    if (found?.otherMode && !this.#isOtherMode && this.#isOpen)
      emit('attention', { warning: `store: ${OTHER_MODE[mode]}` });
    this.#isOtherMode = found?.otherMode ?? false;
    // The file keeps the identity of the store that was used before, so that a restart compares with it too.
    if (this.isForgotten) return;
    this.#noteCompared(asked.filter((connection) => !found?.unread?.includes(connection)));
    // A count that was only read may not have reached the replicas, and a failover would lose it.
    if (what || !this.#noted || (grown > 0 && found && found.count > this.#noted.count))
      this.#noted = found && { id: found.id, count: found.count };
  }

  /** Whether the identity was compared on each connection. Always true for a watch that never refuses starts. */
  get #isWhole(): boolean {
    const { refuses, store } = this.#options;
    return !refuses || store.connections.every((connection) => this.#compared.has(connection));
  }

  /** Adds the connections on which the identity was compared, and forgets those that are closed. */
  #noteCompared(connections: readonly unknown[]): void {
    const compared = new Set([...this.#compared, ...connections]);
    this.#compared = new Set(this.#options.store.connections.filter((each) => compared.has(each)));
  }

  async #readFile(): Promise<void> {
    const { file } = this.#options;
    try {
      const noted = await readNoted(file);
      this.#noted = noted.mark;
      this.#changed = noted.changed;
      this.#accepted = JSON.stringify(noted.accepted);
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException;
      this.#isFileForeign = error instanceof ForeignFile;
      const why = this.#isFileForeign ? (error as Error).message : (code ?? 'it is not valid');
      if (code !== 'ENOENT') this.#fileFailure = `${file} cannot be read (${why}), ${NOT_NOTICED}`;
    }
    try {
      await access(dirname(file), constants.W_OK);
    } catch (error) {
      this.#failed(error);
    }
  }

  /** Takes over what an operator or another gateway has noted in the file meanwhile, and then notes what this one knows. */
  async #writeFile(): Promise<void> {
    const { file, clock, emit } = this.#options;
    if (this.#isFileForeign) return;
    // A file that is missing or damaged is replaced.
    const there = await readNoted(file).catch(() => undefined);
    const accepted = JSON.stringify(there?.accepted);
    if (there?.accepted && accepted !== this.#accepted) {
      this.#noted = there.mark;
      this.#changed = there.changed;
      this.#accepted = accepted;
      // The store may have changed again since it was accepted.
      this.#compared = new Set();
      emit('store_accepted', there.accepted);
      return await this.#compareAgain();
    }
    const isNotedThere = there?.changed !== undefined;
    if (isNotedThere && !this.#changed) {
      this.#changed = there.changed;
      emit('store_changed', { warning: `store: ${there.changed?.what}` });
    }
    if (!this.#noted || (this.isForgotten && isNotedThere)) return;
    const seenAt = new Date(clock.wallMs()).toISOString();
    try {
      await writeNoted(file, {
        mark: this.#noted,
        seenAt,
        changed: this.#changed,
        accepted: there?.accepted,
      });
      this.#fileFailure = undefined;
    } catch (error) {
      this.#failed(error);
    }
  }

  #failed(error: unknown): void {
    const { code } = error as NodeJS.ErrnoException;
    this.#fileFailure = `${this.#options.file} cannot be written (${code}), ${NOT_NOTICED}`;
  }
}

/** Whether a gateway with this configuration refuses starts on a store that forgot. */
export function refusesIn({ store, idempotency: { mode } }: Watched): boolean {
  const mayLose = 'durability' in store && store.durability.mayLoseOnFailover;
  return mode === 'protect' && !mayLose;
}

/** Finds the id of a store that is not watched. A store without an id gets one, so that the other layers on it find the same. */
export async function storeIdOf(
  store: Store,
  mode: Mode,
  watch: StoreWatch | undefined,
): Promise<() => string | undefined> {
  if (watch) return () => watch.storeId;
  const found = store.readIdentity(mode).then((identity) => identity ?? store.visit(mode));
  const id = await found.then(({ id }) => id).catch(() => undefined);
  return () => id;
}

const OLDER = 'the store is older than it was';

/** Whether a difference is that of an older store. */
export const isOlder = (what: string | undefined): boolean => what?.startsWith(OLDER) ?? false;

/** How the store differs from the one that was seen before, unless it may be the same. */
export function differenceOf(
  noted: StoreIdentity,
  found: StoreIdentity | undefined,
  grown: 0 | 1,
): string | undefined {
  const what =
    found === undefined
      ? 'the store is new or was emptied'
      : found.id !== noted.id
        ? 'the store is not the one that was used before: it is another one, or it was emptied'
        : found.count < noted.count + grown
          ? `${OLDER}: it was restored from a backup, or has lost writes`
          : undefined;
  return what && `${what}; keys that it has forgotten can be paid again`;
}

const NOT_NOTICED = 'so a store that was emptied or restored is not noticed: see store.identityFile';

const OTHER_MODE: Record<Mode, string> = {
  protect:
    'a gateway with idempotency.mode: observe uses this store, or did so within three minutes: its requests are not protected',
  observe:
    'a gateway with idempotency.mode: protect uses this store, or did so within three minutes: this one sends duplicates of what that one has executed',
};
