import { Command } from 'ioredis';

export type Argument = string | number | Buffer;

/**
 * A script's command. It does less than ioredis' own commands, which cost more than the rest of a start: it is encoded
 * once, a text's character as one byte, and all commands share one timer.
 */
export class ScriptCommand extends Command {
  readonly #encoded: Buffer;

  /**
   * @param script its digest for `evalsha`, its text for `eval`
   * @param args texts are latin1
   */
  constructor(
    name: 'evalsha' | 'eval',
    script: string | Buffer,
    keys: readonly string[],
    args: readonly Argument[],
  ) {
    super(name, NO_ARGUMENTS, REPLY_AS_BYTES);
    // A cluster's client reads the keys, to find their node.
    this.args = [script, keys.length, ...keys];
    this.#encoded = encode(name, this.args as Argument[], args);
  }

  override toWritable(): Buffer {
    return this.#encoded;
  }

  /** ioredis calls this when it sends the command. */
  override setTimeout(ms: number): void {
    const deadlines = byLimit.get(ms) ?? new Deadlines(ms);
    byLimit.set(ms, deadlines);
    deadlines.add(this);
  }
}

const NO_ARGUMENTS: string[] = [];
const REPLY_AS_BYTES = { replyEncoding: null };

function encode(name: string, start: readonly Argument[], args: readonly Argument[]): Buffer {
  let text = `*${1 + start.length + args.length}\r\n$${name.length}\r\n${name}\r\n`;
  for (const part of start) text += partOf(part);
  for (const part of args) text += partOf(part);
  return Buffer.from(text, 'latin1');
}

function partOf(part: Argument): string {
  const latin1 = typeof part === 'object' ? part.toString('latin1') : String(part);
  return `$${latin1.length}\r\n${latin1}\r\n`;
}

/** How often overdue commands are looked for: as a share of their time limit, and at least. Until then answered ones are kept. */
const LOOKS = 20;
const LOOK_EVERY_MS = 10;

/** Rejects commands that got no answer within a time limit. One timer serves all of them. */
class Deadlines {
  readonly #limitMs: number;
  #commands: { command: ScriptCommand; atMs: number }[] = [];
  #isLooking = false;

  constructor(limitMs: number) {
    this.#limitMs = limitMs;
  }

  add(command: ScriptCommand): void {
    this.#commands.push({ command, atMs: performance.now() + this.#limitMs });
    if (!this.#isLooking) this.#lookLater();
  }

  #lookLater(): void {
    this.#isLooking = true;
    setTimeout(
      () => {
        const nowMs = performance.now();
        const open = this.#commands.filter(({ command }) => !command.isSettled);
        this.#commands = open.filter(({ atMs }) => atMs > nowMs);
        for (const { command, atMs } of open)
          if (atMs <= nowMs) command.reject(new Error('Command timed out'));
        this.#isLooking = this.#commands.length > 0;
        if (this.#isLooking) this.#lookLater();
      },
      Math.min(this.#limitMs / LOOKS, LOOK_EVERY_MS),
    );
  }
}

/** By time limit: each store has one. */
const byLimit = new Map<number, Deadlines>();
