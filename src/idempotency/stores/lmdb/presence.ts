import { readdirSync, rmSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { makeFolder } from '../../../kernel/folder.ts';
import { StoreUnavailable } from '../../store.ts';
import { isAlive, nameOfThisProcess } from './process-id.ts';

const LOOK_EVERY_MS = 20;
const ANSWER_WITHIN_MS = 10_000;
/** Nanoseconds since the boot, which all processes count alike. */
const TICKET_DIGITS = 20;

/** Of this process, by folder: LMDB opens an environment once in a process, however many stores use it. */
const present = new Map<string, Promise<Presence>>();

/**
 * Who has an environment open, and that nobody writes while one more process opens it.
 *
 * LMDB as lmdb brings it reads the number of the last transaction when it opens an environment, and a moment later writes
 * it into the memory that all processes share, without the writers' lock: a commit in between is undone by the next
 * one. So whoever opens announces it, and waits until each of the others has said that no write of its own is under way;
 * they hold their writes back until it is done, or dead. Before that it asks whether all of them listen: for one that stands
 * still, the others shall not have to hold back. Of two that open at once, the one with the earlier ticket goes first.
 *
 * By files in `<path>/processes`: `PROCESS.here` has it open, or is about to; `PROCESS.TICKET.asking` and
 * `PROCESS.TICKET.opening`, to which OTHER says `PROCESS.TICKET.listens.OTHER` and `PROCESS.TICKET.holds.OTHER`. To be used
 * in one namespace of process ids.
 */
export class Presence {
  readonly #folder: string;
  readonly #me = nameOfThisProcess();
  readonly #said = new Set<string>();
  #users = 0;
  #underWay = 0;
  #held: { until: Promise<void>; release: () => void } | undefined;
  #timer: NodeJS.Timeout | undefined;

  private constructor(folder: string) {
    this.#folder = folder;
  }

  /**
   * Calls `open` while no other process writes.
   *
   * @throws {StoreUnavailable} where another process does not answer in time
   */
  static async enter<T>(path: string, open: () => T): Promise<{ opened: T; presence: Presence }> {
    const folder = join(resolve(path), 'processes');
    const known = present.get(folder);
    if (known !== undefined) return await (await known).#reopen(open);
    makeFolder(folder);
    const presence = new Presence(folder);
    const first = presence.#open(open);
    const opened = first.then(() => presence);
    present.set(folder, opened);
    opened.catch(() => {
      if (present.get(folder) === opened) present.delete(folder);
    });
    return { opened: await first, presence };
  }

  /** Every write to the environment goes through here. */
  async write<T>(write: () => Promise<T>): Promise<T> {
    while (this.#held) await this.#held.until;
    this.#underWay++;
    try {
      return await write();
    } finally {
      this.#underWay--;
    }
  }

  /** After the environment was closed. */
  leave(): void {
    if (--this.#users > 0) return;
    clearInterval(this.#timer);
    present.delete(this.#folder);
    this.#remove(`${this.#me}.here`);
    this.#held?.release();
    this.#held = undefined;
  }

  async #open<T>(open: () => T): Promise<T> {
    const opening = `${this.#me}.${String(process.hrtime.bigint()).padStart(TICKET_DIGITS, '0')}`;
    this.#users++;
    this.#put(`${this.#me}.here`);
    try {
      const endMs = performance.now() + ANSWER_WITHIN_MS;
      this.#put(`${opening}.asking`);
      await this.#answered(opening, 'listens', endMs);
      this.#put(`${opening}.opening`);
      await this.#answered(opening, 'holds', endMs);
      const opened = open();
      this.#watch();
      return opened;
    } catch (error) {
      this.leave();
      throw error;
    } finally {
      for (const file of this.#names(`${opening}.`)) this.#remove(file);
    }
  }

  /** Nothing is opened anew, but the library writes all the same. */
  async #reopen<T>(open: () => T): Promise<{ opened: T; presence: Presence }> {
    while (this.#held) await this.#held.until;
    const opened = open();
    this.#users++;
    return { opened, presence: this };
  }

  /** Resolves when all others have said so, and none of them opens before. */
  async #answered(opening: string, word: 'listens' | 'holds', endMs: number): Promise<void> {
    for (;;) {
      const before = this.#others('.opening').filter((name) => isBefore(name, opening));
      for (const name of before) this.#say('holds', name);
      for (const name of this.#others('.asking')) this.#say('listens', name);
      const answers = this.#names(`${opening}.${word}.`);
      const silent = this.#others('.here').filter((name) => !answers.includes(`${opening}.${word}.${name}`));
      if (silent.length === 0 && before.length === 0) return;
      if (performance.now() > endMs) {
        const [pid] = (silent[0] ?? before[0] ?? '').split('.');
        throw new StoreUnavailable(
          `process ${pid}, which has this store open, has not answered within ${ANSWER_WITHIN_MS} ms: end it, or let it go on`,
        );
      }
      await sleep(LOOK_EVERY_MS);
    }
  }

  /** Looks at once too: somebody may have announced itself while this one opened. */
  #watch(): void {
    this.#look();
    this.#timer = setInterval(() => this.#look(), LOOK_EVERY_MS);
    this.#timer.unref();
  }

  #look(): void {
    const [asking, opening] = [this.#others('.asking'), this.#others('.opening')];
    if (asking.length === 0) this.#said.clear();
    for (const name of asking) this.#say('listens', name);
    if (opening.length === 0) {
      this.#held?.release();
      this.#held = undefined;
      return;
    }
    if (!this.#held) {
      const { promise, resolve } = Promise.withResolvers<void>();
      this.#held = { until: promise, release: resolve };
    }
    if (this.#underWay === 0) for (const name of opening) this.#say('holds', name);
  }

  #say(word: 'listens' | 'holds', to: string): void {
    const file = `${to}.${word}.${this.#me}`;
    if (this.#said.has(file)) return;
    this.#said.add(file);
    this.#put(file);
  }

  /** Other processes whose file with this ending is there and who live; what the dead left behind is taken away. */
  #others(ending: '.here' | '.asking' | '.opening'): string[] {
    const names = this.#names('').filter((name) => name.endsWith(ending));
    const others = names
      .filter((name) => !name.startsWith(`${this.#me}.`))
      .map((name) => name.slice(0, -ending.length));
    const dead = others.filter((name) => !isAlive(name));
    for (const name of dead) for (const file of this.#names(`${name}.`)) this.#remove(file);
    return others.filter((name) => !dead.includes(name));
  }

  #names(beginning: string): string[] {
    try {
      return readdirSync(this.#folder).filter((name) => name.startsWith(beginning));
    } catch (error) {
      // With the folder its store has gone.
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') return [];
      throw error;
    }
  }

  #put(name: string): void {
    writeFileSync(join(this.#folder, name), '', { mode: 0o600 });
  }

  #remove(name: string): void {
    rmSync(join(this.#folder, name), { force: true });
  }
}

/** By their tickets; no two processes with the same ticket take themselves for the first. */
function isBefore(a: string, b: string): boolean {
  const [ticketA, ticketB] = [a.slice(-TICKET_DIGITS), b.slice(-TICKET_DIGITS)];
  return ticketA === ticketB ? a < b : ticketA < ticketB;
}
