import { Command } from 'ioredis';
import { afterReading } from '../../lib/clock.ts';

export type Argument = string | number | Buffer;

/**
 * A command that runs a script. An ordinary ioredis command would cost more CPU time than everything else in a start. This
 * one is encoded once, encodes strings as latin1, and shares one timer with all others.
 */
export class ScriptCommand extends Command {
  /** In Redis' protocol. (A private field would cost as much CPU time as the rest of the constructor.) */
  readonly encoded: Buffer;
  /** When it is rejected, on the clock of `performance`. 0: it was not sent yet. */
  dueMs = 0;

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
    this.encoded = encode(name, this.args as Argument[], args);
  }

  override toWritable(): Buffer {
    return this.encoded;
  }

  /** Called by ioredis each time it sends the command. After a redirection within a cluster that is more than once. */
  override setTimeout(ms: number): void {
    if (this.dueMs > 0) return;
    this.dueMs = performance.now() + ms;
    const unanswered = byLimit.get(ms) ?? [];
    byLimit.set(ms, unanswered);
    if (unanswered.push(this) === 1) checkLater(ms);
  }
}

const NO_ARGUMENTS: string[] = [];
const REPLY_AS_BYTES = { replyEncoding: null };

/** Parts up to this size are joined to the text around them, because one long write is faster than many short ones. */
const TEXT_BYTES = 512;

/** The line that begins a part, behind the end of the part before it, by the part's length. */
const HEADS = Array.from({ length: TEXT_BYTES + 1 }, (_, length) => `\r\n$${length}\r\n`);
const headOf = (length: number): string => HEADS[length] ?? `\r\n$${length}\r\n`;

/** Encodes a command in Redis' protocol. */
function encode(name: string, start: readonly Argument[], args: readonly Argument[]): Buffer {
  const long: [before: string, part: Buffer][] = [];
  let bytes = 0;
  let text = `*${1 + start.length + args.length}${headOf(name.length)}${name}`;
  for (const parts of [start, args]) {
    for (const part of parts) {
      if (typeof part === 'string') text += headOf(part.length) + part;
      else if (typeof part === 'number') {
        const digits = String(part);
        text += headOf(digits.length) + digits;
      } else if (part.length <= TEXT_BYTES) text += headOf(part.length) + part.toString('latin1');
      else {
        text += headOf(part.length);
        bytes += text.length + part.length;
        long.push([text, part]);
        text = '';
      }
    }
  }
  text += '\r\n';
  const encoded = Buffer.allocUnsafe(bytes + text.length);
  let at = 0;
  for (const [before, part] of long) {
    at += encoded.write(before, at, 'latin1');
    at += part.copy(encoded, at);
  }
  encoded.write(text, at, 'latin1');
  return encoded;
}

/** By time limit in milliseconds, the commands that had no answer when they were last looked at. */
const byLimit = new Map<number, ScriptCommand[]>();

/** One timer for all commands with the same limit rejects those that have no answer in time. */
function checkLater(limitMs: number): void {
  setTimeout(() => afterReading(() => check(limitMs)), Math.min(limitMs / 20, 10));
}

function check(limitMs: number): void {
  const nowMs = performance.now();
  const left = byLimit.get(limitMs)?.filter((command) => {
    if (!command.isSettled && command.dueMs <= nowMs) command.reject(new Error('Command timed out'));
    return !command.isSettled;
  });
  if (!left?.length) byLimit.delete(limitMs);
  else {
    byLimit.set(limitMs, left);
    checkLater(limitMs);
  }
}
