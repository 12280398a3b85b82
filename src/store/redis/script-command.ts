import { Command } from 'ioredis';
import { afterReading } from '../../lib/clock.ts';

export type Argument = string | number | Buffer;

/**
 * A command that runs a script. An ordinary ioredis command would cost more CPU time than everything else in a start. This
 * one is encoded once, encodes strings as latin1, and shares one timer with all others.
 */
export class ScriptCommand extends Command {
  readonly #encoded: Buffer;
  /** When {@link Deadlines} rejects this command. 0: it was not sent yet. */
  dueMs = 0;
  /** The next command in the queue of {@link Deadlines}. */
  newer: ScriptCommand | undefined;

  /**
   * @param script the SHA-1 for `evalsha`, the text for `eval`
   * @param args strings are encoded as latin1
   */
  constructor(
    name: 'evalsha' | 'eval',
    script: string | Buffer,
    keys: readonly string[],
    args: readonly Argument[],
  ) {
    super(name, NO_ARGUMENTS, REPLY_AS_BYTES);
    // The cluster client reads the keys from `args` to find their node.
    this.args = [script, keys.length, ...keys];
    this.#encoded = encode(name, this.args as Argument[], args);
  }

  override toWritable(): Buffer {
    return this.#encoded;
  }

  /** Called by ioredis each time it sends the command. After a redirection within a cluster that is more than once. */
  override setTimeout(ms: number): void {
    if (this.dueMs > 0) return;
    const deadlines = byLimit.get(ms) ?? new Deadlines(ms);
    byLimit.set(ms, deadlines);
    deadlines.add(this);
  }
}

const NO_ARGUMENTS: string[] = [];
const REPLY_AS_BYTES = { replyEncoding: null };

/** Parts up to this size are sent as text, because one long write is faster than many short ones. */
const TEXT_BYTES = 512;

/** The line that begins a part, behind the end of the part before it, by the part's length. */
const HEADS = Array.from({ length: TEXT_BYTES + 1 }, (_, length) => `\r\n$${length}\r\n`);
const headOf = (length: number): string => HEADS[length] ?? `\r\n$${length}\r\n`;

/** Encodes a command in Redis' protocol. */
function encode(name: string, start: readonly Argument[], args: readonly Argument[]): Buffer {
  const chunks: Buffer[] = [];
  let text = `*${1 + start.length + args.length}${headOf(name.length)}${name}`;
  for (const parts of [start, args]) {
    for (const part of parts) {
      if (typeof part === 'string') text += headOf(part.length) + part;
      else if (typeof part === 'number') {
        const digits = String(part);
        text += headOf(digits.length) + digits;
      } else if (part.length <= TEXT_BYTES) text += headOf(part.length) + part.toString('latin1');
      else {
        chunks.push(Buffer.from(text + headOf(part.length), 'latin1'), part);
        text = '';
      }
    }
  }
  const end = Buffer.from(`${text}\r\n`, 'latin1');
  return chunks.length === 0 ? end : Buffer.concat([...chunks, end]);
}

/** Commands are checked at least this many times within their time limit, and at least every 10 ms. */
const CHECKS_PER_LIMIT = 20;
const CHECK_EVERY_MS = 10;

/**
 * Rejects commands without an answer after their time limit. One timer serves all commands with the same limit. They are a
 * queue, because the oldest one is due first. Answered commands leave it with the next new one, so they do not fill the memory.
 */
class Deadlines {
  readonly #limitMs: number;
  #oldest: ScriptCommand | undefined;
  #newest: ScriptCommand | undefined;
  #isChecking = false;

  constructor(limitMs: number) {
    this.#limitMs = limitMs;
  }

  add(command: ScriptCommand): void {
    this.#dropSettled();
    command.dueMs = performance.now() + this.#limitMs;
    if (this.#newest) this.#newest.newer = command;
    else this.#oldest = command;
    this.#newest = command;
    if (!this.#isChecking) this.#scheduleCheck();
  }

  /** Clears the link of each dropped command: an old object that links to a new one keeps it from being collected. */
  #dropSettled(): void {
    while (this.#oldest?.isSettled) {
      const { newer } = this.#oldest;
      this.#oldest.newer = undefined;
      this.#oldest = newer;
    }
    if (!this.#oldest) this.#newest = undefined;
  }

  #scheduleCheck(): void {
    this.#isChecking = true;
    setTimeout(
      () => {
        this.#dropSettled();
        if (this.#oldest && this.#oldest.dueMs <= performance.now()) afterReading(() => this.#check());
        else this.#checkAgain();
      },
      Math.min(this.#limitMs / CHECKS_PER_LIMIT, CHECK_EVERY_MS),
    );
  }

  #check(): void {
    const nowMs = performance.now();
    for (let at = this.#oldest; at && at.dueMs <= nowMs; at = at.newer)
      if (!at.isSettled) at.reject(new Error('Command timed out'));
    this.#dropSettled();
    this.#checkAgain();
  }

  #checkAgain(): void {
    this.#isChecking = this.#oldest !== undefined;
    if (this.#isChecking) this.#scheduleCheck();
  }
}

/** By time limit in milliseconds. */
const byLimit = new Map<number, Deadlines>();
