import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope } from '../lib/brands.ts';
import { type Clock, systemClock } from '../lib/clock.ts';
import { UnreadableRecord } from '../store/contract.ts';
import { CLOSED_IN, type CopyMark, type CopyRegister, type Scanned } from '../store/register.ts';
import * as rules from './rules.ts';

/** The copy cannot go on. No key was forgotten, and the message says what the operator can do. */
export class CopyRefused extends Error {
  override readonly name = 'CopyRefused';
}

export interface CopyOptions {
  from: CopyRegister;
  to: CopyRegister;
  /** Name the executions whose owners are alive, and do not wait for them: their keys will be in doubt. Default false. */
  althoughAlive?: boolean;
  /** Called with one line for the operator. The copy goes on when it resolves. Default: nothing. */
  onProgress?(line: string): void | Promise<void>;
  clock?: Clock;
  /** How often running executions are looked at. Default 250 ms. */
  pollMs?: number;
}

/** What was copied in this run. */
export interface CopyReport {
  records: number;
  /** Records that are not completed. They are in doubt now. */
  open: number;
  audits: number;
  /** Executions whose owners were alive and were not waited for. */
  cutOff: number;
  /** From when this run closed the source until it opened the destination. */
  closedMs: number;
}

type Counts = Pick<CopyReport, 'records' | 'open' | 'audits'>;

/** As many responses are in memory at once. */
const COPIED_AT_ONCE = 64;
const LISTED_AT_ONCE = 1000;
const MOST_NAMED = 20;
const SAY_EVERY_MS = 5000;

/**
 * Copies all records to an empty store, with both stores closed.
 *
 * Each store has a mark that says how far the copy has come. It is durable, and each write of each gateway obeys it. So a run
 * that was killed can be begun again from any step. A later run takes over by changing the marks: then the earlier one can change
 * no mark any more, and it never writes over a record.
 *
 * **No key is forgotten:** the source is read when it refuses every write. Right before the destination is opened, the source
 * becomes `moved`, and never serves again.
 */
export class Copy {
  readonly #from: CopyRegister;
  readonly #to: CopyRegister;
  readonly #althoughAlive: boolean;
  readonly #say: NonNullable<CopyOptions['onProgress']>;
  readonly #clock: Clock;
  readonly #pollMs: number;
  readonly #runId = randomUUID();
  #saidMs = Number.NEGATIVE_INFINITY;

  constructor(options: CopyOptions) {
    const {
      from,
      to,
      althoughAlive = false,
      onProgress = () => {},
      clock = systemClock,
      pollMs = 250,
    } = options;
    this.#from = from;
    this.#to = to;
    this.#althoughAlive = althoughAlive;
    this.#say = onProgress;
    this.#clock = clock;
    this.#pollMs = pollMs;
  }

  /** @throws {CopyRefused} */
  async run(): Promise<CopyReport> {
    const startedMs = this.#clock.monotonicMs();
    let [source, destination] = await this.#close();
    let cutOff = 0;
    if (source.state === 'closing') {
      cutOff = await this.#awaitOwners();
      source = await this.#change(this.#from, source, { state: 'sealed' });
      await this.#say(`sealed ${this.#from.name}: it takes no results any more`);
    }
    const counts = await this.#copyAll(source, destination);
    // Both are still the stores that were closed, and the source has lost nothing.
    await this.#requireSourceOf(source);
    await this.#requireMarks(source, destination);
    source = await this.#change(this.#from, source, { state: 'moved' });
    destination = await this.#change(this.#to, destination, { state: 'opened' });
    await this.#say(`opened ${this.#to.name}: restart the gateways on it`);
    return { ...counts, cutOff, closedMs: Math.round(this.#clock.monotonicMs() - startedMs) };
  }

  /** Opens the source again, unless the destination was opened, and removes what was copied. @throws {CopyRefused} */
  async undo(): Promise<void> {
    const [from, to] = [this.#from, this.#to];
    const [source, destination] = await this.#readMarks();
    const isReceiving = destination?.state === 'receiving';
    const isSame = source?.copyId === destination?.copyId;
    if (isReceiving) await this.#requireSourceOf(destination);
    else if (!isClosedSource(source))
      throw new CopyRefused(`there is no copy of ${from.name} to ${to.name} to undo`);
    else if (source.state === 'moved')
      throw new CopyRefused(
        `${from.name} was moved, and gateways may have started keys on the store that was opened: to go back, copy that store to an empty one`,
      );
    // First this: an earlier run that goes on can then not open the destination any more.
    const taken = isReceiving && (await this.#change(to, destination, {}));
    if (isClosedSource(source) && (isSame || !isReceiving)) {
      await this.#change(from, source, { state: 'undone' });
      await this.#say(`opened ${from.name} again: restart its gateways`);
    }
    if (!taken) return;
    await to.clear();
    await this.#change(to, taken, { state: 'undone' });
    await this.#say(`removed from ${to.name} what was copied`);
  }

  /**
   * Closes the destination and then the source, or takes over from an earlier run.
   *
   * @returns their marks
   */
  async #close(): Promise<[source: CopyMark, destination: CopyMark]> {
    const [from, to] = [this.#from, this.#to];
    // A store that no gateway has used gets its identity here.
    const identity = (await from.register.readMark('protect')) ?? (await from.register.mark('protect'));
    const [source, before] = await this.#readMarks();
    const isReceiving = before?.state === 'receiving';
    const isSame = isReceiving && isClosedSource(source) && source.copyId === before.copyId;
    if (before?.state === 'opened' && source?.state === 'moved' && source.copyId === before.copyId)
      throw new CopyRefused(`this copy has ended: ${to.name} was opened`);
    if (source?.state === 'receiving' || (source?.state === 'moved' && !isSame))
      throw new CopyRefused(
        `${from.name} ${source.state === 'moved' ? 'was moved to another store' : 'is the destination of a copy that has not ended'}`,
      );
    if (isReceiving) await this.#requireSourceOf(before);
    else if (before && CLOSED_IN[before.state] !== 'no')
      throw new CopyRefused(`${to.name} is the source of another copy`);
    // Before it is closed: it may be a store that serves.
    else await this.#requireEmpty();

    const copy = isSame ? {} : { copyId: randomUUID(), source: { id: identity.id, count: identity.count } };
    const destination = await this.#change(to, before, { ...copy, state: 'receiving' });
    try {
      if ((await from.readCopyMark())?.runId === this.#runId)
        throw new CopyRefused(`${from.name} and ${to.name} are the same store`);
      // What is there was copied by an earlier run, and the source has served since.
      if (isReceiving && !isSame) await to.clear();
      // Now it stays so.
      if (!isSame) await this.#requireEmpty();
    } catch (error) {
      if (error instanceof CopyRefused) await this.#change(to, destination, { state: 'undone' });
      throw error;
    }
    const { copyId, source: noted } = destination;
    const state = isSame ? source.state : 'closing';
    const closed = await this.#change(from, source, { copyId, source: noted, state });
    await this.#say(`closed ${to.name} and ${from.name}: neither starts a key`);
    return [closed, destination];
  }

  async #readMarks(): Promise<[source: CopyMark | undefined, destination: CopyMark | undefined]> {
    return await Promise.all([this.#from.readCopyMark(), this.#to.readCopyMark()]);
  }

  /** Writes the next mark of a store, under the name of this run. */
  async #change(
    side: CopyRegister,
    before: CopyMark | undefined,
    change: Partial<CopyMark>,
  ): Promise<CopyMark> {
    const epoch = (before?.epoch ?? 0) + 1;
    const mark = { ...before, ...change, epoch, runId: this.#runId } as CopyMark;
    if (!(await side.changeCopyMark(mark))) throw lostMark(side);
    return mark;
  }

  async #requireEmpty(): Promise<void> {
    for await (const page of this.#to.scan())
      if (page.length > 0)
        throw new CopyRefused(
          `${this.#to.name} has records: copy to an empty store, so that no key of either is lost`,
        );
  }

  /** A source that has forgotten keys must not take the place of what was copied from it. */
  async #requireSourceOf({ source: noted }: CopyMark): Promise<void> {
    const { name, register } = this.#from;
    const found = await register.readMark('protect');
    if (found?.id !== noted.id)
      throw new CopyRefused(
        `${this.#to.name} has records of another store than ${name}, or ${name} was emptied or replaced since they were copied`,
      );
    if (found.count < noted.count)
      throw new CopyRefused(`${name} is older than when it was closed: it was restored, or has lost writes`);
  }

  /** Waits until no open record has a living owner. Returns how many it does not wait for. */
  async #awaitOwners(): Promise<number> {
    for (;;) {
      const alive = await this.#alive();
      if (this.#althoughAlive) for (const name of alive) await this.#say(`not waiting for ${name}`);
      if (this.#althoughAlive || alive.length === 0) return alive.length;
      const names = alive.slice(0, MOST_NAMED).join(', ');
      await this.#sayAtTimes(`waiting for ${alive.length} executions: ${names}`);
      await sleep(this.#pollMs);
    }
  }

  /** Names the open records whose owners are alive. */
  async #alive(): Promise<string[]> {
    const { register } = this.#from;
    const names: string[] = [];
    let cursor: string | undefined;
    do {
      const page = await register.list({ open: true, limit: LISTED_AT_ONCE, cursor });
      for (const listed of page.records) {
        if (listed.unreadable !== undefined) continue;
        const { id, head: record, expiresInMs } = listed;
        const seen = { record, expiresInMs };
        const isLeased =
          listed.isLeased ?? (rules.needsLease(seen) && (await register.isLeased?.(id))) ?? false;
        const { merchant, operation, key, gatewayId } = record;
        if (rules.isAlive({ ...seen, isLeased }))
          names.push(`${operation} of ${merchant}, key ${key}, on gateway ${gatewayId}`);
      }
      cursor = page.cursor;
    } while (cursor !== undefined);
    return names;
  }

  /** Copies everything, in one pass during which no server was replaced. */
  async #copyAll(source: CopyMark, destination: CopyMark): Promise<Counts> {
    for (;;) {
      this.#saidMs = this.#clock.monotonicMs();
      await this.#requireMarks(source, destination);
      const servers = await this.#servers();
      const counts = { records: 0, open: 0, audits: 0 };
      const unreadable: string[] = [];
      for await (const page of this.#from.scan())
        for (let at = 0; at < page.length; at += COPIED_AT_ONCE) {
          const some = page.slice(at, at + COPIED_AT_ONCE);
          await Promise.all(some.map((scanned) => this.#copyOne(scanned, counts, unreadable)));
          // Also at once after this process was paused.
          if (await this.#sayAtTimes(`copied ${counts.records} records so far`))
            await this.#requireMarks(source, destination);
        }
      if (unreadable.length > 0) throw cannotRead(this.#from, unreadable);
      if ((await this.#servers()) === servers) return counts;
      await this.#say('a server was replaced, or slots moved: copying everything again');
    }
  }

  async #servers(): Promise<string> {
    return `${await this.#from.servers()}\n${await this.#to.servers()}`;
  }

  async #copyOne({ id, kind }: Scanned, counts: Counts, unreadable: string[]): Promise<void> {
    try {
      if (kind === 'record') await this.#copyRecord(id, counts);
      else {
        await this.#to.putAudit(id, await this.#from.register.audit(id));
        counts.audits++;
      }
    } catch (error) {
      if (!(error instanceof UnreadableRecord)) throw error;
      unreadable.push(`${id}: ${error.message}`);
    }
  }

  async #copyRecord(id: Scope, counts: Counts): Promise<void> {
    const seen = await this.#from.register.read(id);
    // It has expired.
    if (!seen) return;
    const { record } = seen;
    const { operation, state, token, lifetimes } = record;
    // Less than 0: somebody has removed its TTL by hand. The copy expires, but not early.
    const expiresInMs = seen.expiresInMs < 0 ? lifetimes.inDoubtRetentionMs : seen.expiresInMs;
    const write = { kind: 'replace', revision: undefined, record, operation, expiresInMs } as const;
    const reply = await this.#to.register.replace(id, write);
    // A gateway that was started there too early may have found the owner dead, and noted that.
    const isMarked = !reply.done && state === 'executing' && reply.held?.record.state === 'in_doubt';
    if (!reply.done && !(isMarked && reply.held?.record.token.equals(token)))
      throw new CopyRefused(
        `${this.#to.name} has another record of ${id}, which this copy has not written: undo it, and begin again`,
      );
    counts.records++;
    if (state !== 'completed') counts.open++;
  }

  async #requireMarks(source: CopyMark, destination: CopyMark): Promise<void> {
    if (!(await this.#from.hasCopyMark(source))) throw lostMark(this.#from);
    if (!(await this.#to.hasCopyMark(destination))) throw lostMark(this.#to);
  }

  /** @returns whether the line was said, because none was for some time */
  async #sayAtTimes(line: string): Promise<boolean> {
    const nowMs = this.#clock.monotonicMs();
    if (nowMs - this.#saidMs < SAY_EVERY_MS) return false;
    this.#saidMs = nowMs;
    await this.#say(line);
    return true;
  }
}

const isClosedSource = (mark: CopyMark | undefined): mark is CopyMark =>
  mark?.state === 'closing' || mark?.state === 'sealed' || mark?.state === 'moved';

const lostMark = ({ name }: CopyRegister) =>
  new CopyRefused(
    `${name} has lost the mark of this run: another run has taken over, or the store was emptied or replaced`,
  );

const cannotRead = ({ name }: CopyRegister, unreadable: readonly string[]) =>
  new CopyRefused(
    [
      `${unreadable.length} records of ${name} cannot be read, so nothing was opened (oncegate records show --scope says more; --undo opens ${name} again):`,
      ...unreadable.slice(0, MOST_NAMED),
    ].join('\n'),
  );
