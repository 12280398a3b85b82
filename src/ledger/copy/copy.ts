import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { Scope } from '../../lib/brands.ts';
import type { Clock } from '../../lib/clock.ts';
import type { Mark } from '../../store/copy-mark.ts';
import type { CopySide, LogEntry, Snapshot } from '../../store/copy-side.ts';
import { type FollowedCounts, Followers, requireMark } from './followers.ts';

/** The copy cannot go on. Nothing was lost, and the message says what the operator can do. */
export class CopyRefused extends Error {
  override readonly name = 'CopyRefused';
}

export interface CopyOptions {
  from: CopySide;
  to: CopySide;
  clock: Clock;
  /** The source is not sealed if a round before takes so long that payouts would pause for longer. Default 1000 ms. */
  longestPauseMs?: number;
  /** Called at each step, with one line for the operator. The copy goes on when it resolves. */
  onProgress?(line: string): void | Promise<void>;
}

export interface CopyReport {
  /** Scopes that were copied while the source served. */
  copiedBefore: number;
  /** Scopes that were copied while neither side served. */
  copiedInPause: number;
  /** How long neither side served. Undefined: an earlier run has opened the destination. */
  pauseMs: number | undefined;
  followed: FollowedCounts;
}

/** A run that works writes a beat this often, and another run watches for so long before it takes over. */
const BEAT_EVERY_MS = 500;
const WATCH_BEATS_FOR_MS = 2000;
/** The source is sealed after a round that took no longer than this, because the pause takes about as long. */
const SHORT_ROUND_MS = 100;
/** Then it is sealed after a round of any length that leaves some room below the longest pause. */
const MOST_ROUNDS = 20;
const SHARE_OF_PAUSE = 0.5;
/** How many scopes are read and written at once. */
const SCOPES_PER_STEP = 250;
const MOST_NAMED = 20;
const SAY_EVERY = 10_000;

/**
 * Moves all records from one store to another while gateways use both.
 *
 * 1. Marks the destination as receiving, so that gateways on it start nothing, and the source as copying, so that it logs starts.
 * 2. Copies everything. Then copies again, in rounds, what is not completed and what the log names, until little is left.
 * 3. Seals the source: its mark becomes `moved`, and from then on it starts nothing. Copies the rest, and opens the
 *    destination. This is the pause.
 * 4. Follows the executions whose owners still run on the source, and writes what became of them to the destination.
 *
 * Both marks are durable, so a run that was interrupted can be repeated at any point. It begins where the marks say. Every write
 * to the destination names this run, so a run that was replaced writes nothing more.
 *
 * **Nothing is forgotten:** only a start creates a record, and only records that are not completed change. So a scope that is in
 * neither the copy nor the log has no record, and a record that was copied as completed is final.
 */
export class Copy {
  readonly #from: CopySide;
  readonly #to: CopySide;
  readonly #clock: Clock;
  readonly #say: (line: string) => void | Promise<void>;
  readonly #longestPauseMs: number;
  readonly #runId = randomUUID();
  #source: Mark | undefined;
  #destination: Mark | undefined;
  /** Scopes to copy again, with the token under which each was copied last, or logged. */
  readonly #open = new Map<Scope, LogEntry>();
  #logRead = 0;
  #beating: NodeJS.Timeout | undefined;

  constructor({ from, to, clock, longestPauseMs = 1000, onProgress = () => {} }: CopyOptions) {
    this.#longestPauseMs = longestPauseMs;
    this.#from = from;
    this.#to = to;
    this.#clock = clock;
    this.#say = onProgress;
  }

  /** Sets the marks and copies nothing yet, so that gateways on the destination can be started and wait. */
  async prepare(): Promise<void> {
    await this.#working(() => this.#begin());
  }

  /** @throws {CopyRefused} */
  async run(): Promise<CopyReport> {
    return await this.#working(async () => {
      await this.#begin();
      let copiedBefore = 0;
      let copiedInPause = 0;
      let pauseMs: number | undefined;
      if (this.#destination?.state === 'receiving') {
        if (this.#source?.state === 'copying') copiedBefore = await this.#copyWhileServing();
        const sealedMs = this.#clock.monotonicMs();
        this.#source = await this.#change(this.#from, this.#source, 'moved');
        await this.#say(`sealed ${this.#from.name}: it starts nothing any more`);
        copiedInPause = await this.#round();
        await this.#to.flush();
        await requireMark(this.#from, 'moved', this.#source.copyId);
        this.#destination = await this.#change(this.#to, this.#destination, 'opened');
        pauseMs = Math.round(this.#clock.monotonicMs() - sealedMs);
        await this.#say(`opened ${this.#to.name}: payouts paused for ${pauseMs} ms in this run`);
      }
      return { copiedBefore, copiedInPause, pauseMs, followed: await this.#follow() };
    });
  }

  /** Removes what was copied, and lets the source serve again. Only while the destination was not opened. @throws {CopyRefused} */
  async undo(): Promise<void> {
    await this.#working(async () => {
      const [source, destination] = await this.#readMarks();
      const isOurs = destination?.state === 'receiving' || destination?.state === 'undoing';
      if (destination?.state === 'opened')
        throw new CopyRefused(
          `${this.#to.name} was opened, and gateways may have started keys there: the copy cannot be undone. To go back, copy the records back`,
        );
      if (!destination || !isOurs) throw new CopyRefused(`${this.#to.name} has no copy to undo`);
      const serves = source === undefined || source.state === 'opened';
      if (!serves && source.copyId !== destination.copyId)
        throw new CopyRefused(`${this.#from.name} is not the source of the copy in ${this.#to.name}`);
      await this.#refuseOtherRun();
      this.#destination = await this.#change(this.#to, destination, 'undoing');
      this.#beat();
      if (!serves && !(await this.#from.changeMark(source, undefined))) throw changedMeanwhile(this.#from);
      await this.#say(`${this.#from.name} serves again`);
      for await (const scopes of this.#to.scopes())
        await this.#to.write(this.#destination, scopes.map(removal));
      clearInterval(this.#beating);
      await this.#to.changeMark(this.#destination, undefined);
    });
  }

  async #readMarks(): Promise<[source: Mark | undefined, destination: Mark | undefined]> {
    return await Promise.all([this.#from.readMark(), this.#to.readMark()]);
  }

  /** Finds out how far an earlier run has come, or begins a new copy. */
  async #begin(): Promise<void> {
    const [source, destination] = await this.#readMarks();
    const sourceServes = source === undefined || source.state === 'opened';
    if (!destination) {
      if (!sourceServes)
        throw new CopyRefused(
          source.state === 'moved' || source.state === 'copying'
            ? `${this.#from.name} is the source of a copy to another store than ${this.#to.name}`
            : `${this.#from.name} is the destination of a copy that has not ended`,
        );
      await this.#beginNew(source);
      return;
    }
    if (destination.state === 'undoing')
      throw new CopyRefused(`an --undo of the copy to ${this.#to.name} was interrupted: repeat it first`);
    const isSameCopy = source?.copyId === destination.copyId;
    const isHalfMarked = sourceServes && destination.state === 'receiving' && (await this.#to.isEmpty());
    if (isSameCopy && source?.state === destination.state)
      throw new CopyRefused(`${this.#from.name} and ${this.#to.name} are the same store`);
    const canGoOn =
      isSameCopy &&
      (destination.state === 'receiving'
        ? source?.state === 'copying' || source?.state === 'moved'
        : destination.state === 'opened' && source?.state === 'moved');
    if (!canGoOn && !isHalfMarked)
      throw new CopyRefused(
        `${this.#to.name} is not the destination of an interrupted copy of ${this.#from.name}: copy to a new store`,
      );
    await this.#refuseOtherRun();
    this.#destination = await this.#change(this.#to, destination, destination.state);
    this.#beat();
    this.#source = await this.#change(this.#from, source, isHalfMarked ? 'copying' : undefined);
    await this.#say(`continuing the copy of ${this.#from.name} to ${this.#to.name}`);
  }

  /** The destination first: if the run ends between the two, the source still serves as if nothing had happened. */
  async #beginNew(source: Mark | undefined): Promise<void> {
    const copyId = randomUUID();
    const destination: Mark = { state: 'receiving', copyId, runId: this.#runId };
    if (!(await this.#to.changeMark(undefined, destination))) throw changedMeanwhile(this.#to);
    const giveUp = async (message: string) => {
      await this.#to.changeMark(destination, undefined);
      throw new CopyRefused(message);
    };
    if ((await this.#from.readMark())?.copyId === copyId)
      await giveUp(`${this.#from.name} and ${this.#to.name} are the same store`);
    // No gateway can start a key there any more, so what is empty now stays empty.
    if (!(await this.#to.isEmpty()))
      await giveUp(`${this.#to.name} has records: copy to a new store, so that no key of either is lost`);
    this.#destination = destination;
    this.#beat();
    this.#source = await this.#change(this.#from, source, 'copying', copyId);
    await this.#say(
      `marked ${this.#to.name} as receiving: gateways on it are not ready until the copy is complete`,
    );
  }

  /** Changes the state of a mark, and puts it under the name of this run. */
  async #change(
    side: CopySide,
    from: Mark | undefined,
    state?: Mark['state'],
    copyId?: string,
  ): Promise<Mark> {
    const to = {
      state: state ?? from?.state,
      copyId: copyId ?? this.#destination?.copyId ?? from?.copyId,
      runId: this.#runId,
    } as Mark;
    if (!(await side.changeMark(from, to))) throw changedMeanwhile(side);
    return to;
  }

  async #refuseOtherRun(): Promise<void> {
    const before = await this.#to.readBeat();
    if (before === '') return;
    await sleep(WATCH_BEATS_FOR_MS);
    if ((await this.#to.readBeat()) !== before)
      throw new CopyRefused('another run of this command is working: wait until it has ended');
  }

  #beat(): void {
    const write = () => void this.#to.writeBeat(randomUUID()).catch(() => {});
    write();
    this.#beating = setInterval(write, BEAT_EVERY_MS).unref();
  }

  /** An empty beat says that no run works any more. */
  async #working<T>(work: () => Promise<T>): Promise<T> {
    try {
      return await work();
    } finally {
      if (this.#beating) {
        clearInterval(this.#beating);
        await this.#to.writeBeat('').catch(() => {});
      }
    }
  }

  /** Copies everything, and then what has changed since, until little is left. Returns how many scopes it has copied. */
  async #copyWhileServing(): Promise<number> {
    let copied = 0;
    const unreadable: string[] = [];
    for await (const scopes of this.#from.scopes()) {
      unreadable.push(...(await this.#copy(scopes)));
      if (Math.floor(copied / SAY_EVERY) < Math.floor((copied + scopes.length) / SAY_EVERY))
        await this.#say(`copied ${copied + scopes.length} keys so far`);
      copied += scopes.length;
    }
    if (unreadable.length > 0) throw cannotRead(this.#from, unreadable);
    await this.#say(`copied ${copied} keys while ${this.#from.name} serves`);
    for (let round = 1; ; round++) {
      const startedMs = this.#clock.monotonicMs();
      const found = await this.#round();
      copied += found;
      const tookMs = Math.round(this.#clock.monotonicMs() - startedMs);
      await this.#say(`round ${round}: copied ${found} keys again in ${tookMs} ms`);
      if (tookMs <= SHORT_ROUND_MS) return copied;
      if (round < MOST_ROUNDS) continue;
      if (tookMs <= this.#longestPauseMs * SHARE_OF_PAUSE) return copied;
      throw new CopyRefused(
        `payouts would pause for longer than ${this.#longestPauseMs} ms, because a round takes ${tookMs} ms: repeat this command when there is less load, or allow a longer pause with --longest-pause-ms. Nothing was switched`,
      );
    }
  }

  /** Copies what is not completed, and what the source has logged. Returns how many scopes it has copied. */
  async #round(): Promise<number> {
    await this.#readLog();
    const scopes = [...this.#open.keys()];
    const unreadable: string[] = [];
    for (let at = 0; at < scopes.length; at += SCOPES_PER_STEP)
      unreadable.push(...(await this.#copy(scopes.slice(at, at + SCOPES_PER_STEP))));
    if (unreadable.length > 0) throw cannotRead(this.#from, unreadable);
    return scopes.length;
  }

  async #readLog(): Promise<void> {
    const entries = await this.#from.readLog(this.#logRead);
    this.#logRead += entries.length;
    for (const entry of entries) this.#open.set(entry.scope, entry);
  }

  /** Returns one line for each record that cannot be read. */
  async #copy(scopes: readonly Scope[]): Promise<string[]> {
    const unreadable: string[] = [];
    for (let at = 0; at < scopes.length; ) {
      const found = await this.#from.read(scopes.slice(at));
      at += found.length;
      const snapshots: Snapshot[] = [];
      for (const snapshot of found) {
        if (snapshot.unreadable === undefined) snapshots.push(snapshot);
        else unreadable.push(`${snapshot.scope}: ${snapshot.unreadable}`);
      }
      // First the log: a later run then finds every record that the destination has and that may still change.
      await this.#from.appendToLog(this.#newlyOpen(snapshots));
      await this.#to.write(
        this.#destination as Mark,
        snapshots.map((snapshot) => ({ snapshot, expected: 'anything', withAudit: true })),
      );
    }
    return unreadable;
  }

  /** Notes which of these are not completed. Returns those that the log does not have under their token. */
  #newlyOpen(snapshots: readonly Snapshot[]): LogEntry[] {
    const entries: LogEntry[] = [];
    for (const { scope, record } of snapshots) {
      const known = this.#open.get(scope);
      if (!record || record.state === 'completed') this.#open.delete(scope);
      else if (!known?.token.equals(record.token)) {
        const entry = { scope, token: record.token };
        this.#open.set(scope, entry);
        entries.push(entry);
      }
    }
    return entries;
  }

  async #follow(): Promise<FollowedCounts> {
    const followers = new Followers(this.#from, this.#to, this.#destination as Mark);
    // A run that begins here knows them from the log. The last entry of a scope is that of its last execution.
    await this.#readLog();
    return await followers.follow(this.#open, () => this.#readLog());
  }
}

const removal = (scope: Scope) => ({
  snapshot: { scope, audit: [], auditExpiresInMs: 0 },
  expected: 'anything' as const,
  withAudit: true,
});

const changedMeanwhile = ({ name }: CopySide) =>
  new CopyRefused(`another run of this command has changed ${name} meanwhile`);

function cannotRead({ name }: CopySide, lines: string[]): CopyRefused {
  const more = lines.length > MOST_NAMED ? [`and ${lines.length - MOST_NAMED} more`] : [];
  const named = [...lines.slice(0, MOST_NAMED), ...more];
  return new CopyRefused(
    `${name} has records that cannot be read, and the copy cannot go on without them:\n${named.join('\n')}`,
  );
}
