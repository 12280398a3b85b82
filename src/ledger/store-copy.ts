import { type Clock, pause, systemClock } from '../lib/clock.ts';
import { type Random, systemRandom } from '../lib/random.ts';
import type { CopyProgress, CopyRegister, Scanned } from '../store/register.ts';
import { UnreadableRecord } from '../store/types.ts';
import * as rules from './rules.ts';

/** The copy cannot go on. No key was forgotten, and the message says what the operator can do. */
export class CopyRefused extends Error {
  override readonly name = 'CopyRefused';
}

export interface CopyOptions {
  from: CopyRegister;
  to: CopyRegister;
  /** Name the executions whose owners are alive, and do not wait for them: their keys will be in doubt. Default: false. */
  althoughAlive?: boolean;
  /** Gets one line for the operator. */
  onProgress?(line: string): void;
  clock?: Clock;
  random?: Random;
}

/** What this run has done. `open`: records that are in doubt now. `cutOff`: executions that it did not wait for. */
export type CopyReport = Record<'completed' | 'open' | 'audits' | 'cutOff' | 'tookMs', number>;

/** How many responses are in memory at once. */
const COPIED_AT_ONCE = 128;
const LISTED_AT_ONCE = 1000;
const MOST_NAMED = 20;
const LOOK_EVERY_MS = 250;
const SAY_EVERY_MS = 5000;

/**
 * Copies all records to an empty store, with both stores closed.
 *
 * Each store notes its progress: how far the copy has come. That is durable, and each write of each gateway obeys it. So a run
 * that was killed can be begun again from any step. A later run takes over by changing both: then the earlier one can change
 * neither any more, and it never writes over a record.
 *
 * **No key is forgotten:** the source is read when it refuses every write. Right before the destination is opened, the source
 * becomes `moved`, and never serves again.
 */
export class Copy {
  readonly #options: Required<CopyOptions>;
  readonly #runId: string;
  #saidMs = Number.NEGATIVE_INFINITY;

  constructor(options: CopyOptions) {
    const defaults = { althoughAlive: false, onProgress: () => {}, clock: systemClock, random: systemRandom };
    this.#options = { ...defaults, ...options };
    this.#runId = this.#newId();
  }

  #newId(): string {
    return this.#options.random.token().toString('hex');
  }

  /** @throws {CopyRefused} */
  async run(): Promise<CopyReport> {
    const { from, to, clock, onProgress } = this.#options;
    const startedMs = clock.monotonicMs();
    let [source, destination] = await this.#close();
    onProgress('closed the destination and the source: neither starts a key');
    let cutOff = 0;
    if (source.state === 'closing') {
      cutOff = await this.#awaitOwners();
      source = await this.#change(from, source, { state: 'sealed' });
      onProgress('sealed the source: it takes no results any more');
    }
    const counts = await this.#copyAll(source, destination);
    await this.#requireSourceOf(source);
    await this.#requireProgress(source, destination);
    source = await this.#change(from, source, { state: 'moved' });
    destination = await this.#change(to, destination, { state: 'opened' });
    onProgress('opened the destination: restart the gateways on it');
    return { ...counts, cutOff, tookMs: Math.round(clock.monotonicMs() - startedMs) };
  }

  /** Opens the source again, unless the destination was opened. The destination stays closed. @throws {CopyRefused} */
  async undo(): Promise<void> {
    const [source, destination] = await this.#readBoth();
    if (!isClosedSource(source)) throw new CopyRefused('no copy has closed the source');
    const isReceiving = destination?.state === 'receiving' && destination.copyId === source.copyId;
    if (source.state === 'moved' && !isReceiving) throw new CopyRefused(MOVED);
    // The destination first, so that a run that was paused cannot open it any more.
    if (isReceiving) await this.#change(this.#options.to, destination, {});
    await this.#change(this.#options.from, source, { state: 'undone' });
    this.#options.onProgress('opened the source again: restart its gateways. The destination stays closed');
  }

  /** Closes the destination and then the source, or takes over from an earlier run. Returns their progress. */
  async #close(): Promise<[source: CopyProgress, destination: CopyProgress]> {
    const { from, to } = this.#options;
    // A store that no gateway has used gets its identity here.
    const { id, count } =
      (await from.register.readIdentity('protect')) ?? (await from.register.visit('protect'));
    const [source, before] = await this.#readBoth();
    const isReceiving = before?.state === 'receiving';
    const goesOn = isReceiving && isClosedSource(source) && source.copyId === before.copyId;
    if (source?.state === 'moved' && !goesOn) throw new CopyRefused(MOVED);
    if (source?.state === 'receiving' || isClosedSource(before))
      throw new CopyRefused('one of the stores takes part in another copy, which has closed it');
    // Before the destination is closed, because it may be a store that serves.
    if (!goesOn) await this.#requireEmpty(id);
    const copy = goesOn ? {} : { copyId: this.#newId(), source: { id, count } };
    const destination = await this.#change(to, before, { ...copy, state: 'receiving' });
    if (!goesOn)
      // Again now that nothing can start a key there. A destination that has records after all is a store that serves, so it is opened
      // again. If it does not answer, it stays closed, because a gateway may have been started on it too early.
      await this.#requireEmpty(id).catch(async (error) => {
        if (error instanceof CopyRefused) await this.#change(to, destination, { state: 'undone' });
        throw error;
      });
    const { copyId, source: noted } = destination;
    const state = goesOn ? source.state : 'closing';
    return [await this.#change(from, source, { copyId, source: noted, state }), destination];
  }

  async #readBoth(): Promise<(CopyProgress | undefined)[]> {
    const { from, to } = this.#options;
    // The destination first. It is opened after the source was moved, so a run that reads it as open then reads the source as moved.
    const destination = await this.#readProgress(to);
    return [await this.#readProgress(from), destination];
  }

  async #readProgress(side: CopyRegister): Promise<CopyProgress | undefined> {
    const progress = await side.readCopyProgress();
    // A run was killed while it changed the progress.
    if (progress?.isWhole === false) await side.changeCopyProgress(progress);
    return progress;
  }

  /** Writes the next progress of a store, under the name of this run. */
  async #change(side: CopyRegister, before: CopyProgress | undefined, change: Partial<CopyProgress>) {
    const epoch = (before?.epoch ?? 0) + 1;
    const progress = { ...before, ...change, epoch, runId: this.#runId } as CopyProgress;
    if (!(await side.changeCopyProgress(progress))) throw new CopyRefused(LOST);
    return progress;
  }

  async #requireProgress(
    ...expected: readonly [source: CopyProgress, destination: CopyProgress]
  ): Promise<void> {
    for (const [at, side] of [this.#options.from, this.#options.to].entries()) {
      const progress = await side.readCopyProgress();
      if (!progress?.isWhole || progress.epoch !== expected[at]?.epoch) throw new CopyRefused(LOST);
    }
  }

  /** A source that has forgotten keys must not take the place of what was copied from it. */
  async #requireSourceOf({ source: noted }: CopyProgress): Promise<void> {
    const found = await this.#options.from.register.readIdentity('protect');
    if (found?.id !== noted.id || found.count < noted.count)
      throw new CopyRefused('the source was emptied, replaced or restored since it was closed');
  }

  async #requireEmpty(sourceId: string): Promise<void> {
    const { to } = this.#options;
    if ((await to.register.readIdentity('protect'))?.id === sourceId)
      throw new CopyRefused('the destination is the source, or was made from a backup of it');
    for await (const page of to.scan())
      if (page.length > 0)
        throw new CopyRefused('the destination has records: copy to an empty store, so that no key is lost');
  }

  /** Waits until no open record has a living owner. Returns how many it does not wait for. */
  async #awaitOwners(): Promise<number> {
    const { althoughAlive, onProgress } = this.#options;
    for (;;) {
      const alive = await this.#alive();
      if (althoughAlive) for (const name of alive) onProgress(`not waiting for ${name}`);
      if (althoughAlive || alive.length === 0) return alive.length;
      this.#sayAtTimes(`waiting for ${alive.length} requests: ${alive.slice(0, MOST_NAMED).join(', ')}`);
      await pause(this.#options.clock, LOOK_EVERY_MS);
    }
  }

  /** Names the open records whose owners are alive. */
  async #alive(): Promise<string[]> {
    const { register } = this.#options.from;
    const names: string[] = [];
    let cursor: string | undefined;
    do {
      const page = await register.list({ open: true, limit: LISTED_AT_ONCE, cursor });
      for (const listed of page.records) {
        if (listed.unreadable !== undefined) continue;
        const { id, head: record, expiresInMs } = listed;
        const seen = { record, expiresInMs };
        const isLeased = listed.isLeased ?? (rules.needsLease(seen) && (await register.isLeased?.(id)));
        const { merchant, operation, key, gatewayId } = record;
        if (rules.isAlive({ ...seen, isLeased: isLeased ?? false }))
          names.push(`${operation} of ${merchant}, key ${key}, on gateway ${gatewayId}`);
      }
      cursor = page.cursor;
    } while (cursor !== undefined);
    return names;
  }

  /** Copies everything, in one pass during which no server was replaced. */
  async #copyAll(source: CopyProgress, destination: CopyProgress) {
    const { from, to, clock, onProgress } = this.#options;
    const servers = async () => `${await from.servers()}\n${await to.servers()}`;
    for (;;) {
      this.#saidMs = clock.monotonicMs();
      const before = await servers();
      const counts = { completed: 0, open: 0, audits: 0 };
      for await (const page of from.scan())
        while (page.length > 0) {
          const copied = page.splice(0, COPIED_AT_ONCE).map((scanned) => this.#copyOne(scanned));
          for (const what of await Promise.all(copied)) if (what) counts[what]++;
          // After a pause of this process the line is overdue, so the progress is checked at once.
          if (this.#sayAtTimes(`copied ${counts.completed + counts.open} records so far`))
            await this.#requireProgress(source, destination);
        }
      if ((await servers()) === before) return counts;
      onProgress('a server was replaced, or slots moved: copying everything again');
    }
  }

  /** Copies a record or an audit trail, and returns which it was, unless the record has expired. */
  async #copyOne({ id, kind }: Scanned): Promise<'completed' | 'open' | 'audits' | undefined> {
    const { from, to } = this.#options;
    if (kind === 'audit') {
      await to.putAudit(id, await from.register.audit(id));
      return 'audits';
    }
    const seen = await from.register.read(id).catch((error: Error) => {
      if (error instanceof UnreadableRecord) throw new CopyRefused(`${id}: ${error.message}. ${UNREADABLE}`);
      throw error;
    });
    if (!seen) return undefined;
    const { record } = seen;
    const { operation, state, token, lifetimes } = record;
    // An operator has removed its TTL, or set its expiry to infinity, or its slot moves. The copy expires, but not early.
    const isUnknown = seen.expiresInMs <= 0 || !Number.isFinite(seen.expiresInMs);
    const expiresInMs = isUnknown ? lifetimes.inDoubtRetentionMs : seen.expiresInMs;
    const write = { kind: 'replace', revision: undefined, record, operation, expiresInMs } as const;
    const reply = await to.register.replace(id, write);
    const held = reply.done ? undefined : reply.held?.record;
    // A gateway that was started there too early may have found the owner dead, and noted that.
    const isMarked = state === 'executing' && held?.state === 'in_doubt' && held.token.equals(token);
    if (!reply.done && !isMarked)
      throw new CopyRefused(`the destination has another record of ${id}, which this copy has not written`);
    return state === 'completed' ? state : 'open';
  }

  /** Says the line, unless one was said shortly before. Returns whether it did. */
  #sayAtTimes(line: string): boolean {
    const nowMs = this.#options.clock.monotonicMs();
    if (nowMs - this.#saidMs < SAY_EVERY_MS) return false;
    this.#saidMs = nowMs;
    this.#options.onProgress(line);
    return true;
  }
}

const MOVED =
  'the source was moved, and gateways may have started keys in the store that was opened: to go back, copy that one to an empty store';
const LOST = 'a store no longer knows this run: another run has taken over, or it was emptied';

const UNREADABLE =
  'Nothing was opened. oncegate records list shows all records that cannot be read; --undo opens the source again';

const isClosedSource = (progress: CopyProgress | undefined): progress is CopyProgress =>
  progress?.state === 'closing' || progress?.state === 'sealed' || progress?.state === 'moved';
