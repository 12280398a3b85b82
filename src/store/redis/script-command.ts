import { Command } from 'ioredis';
import { afterReading } from '../../lib/clock.ts';

export type Argument = string | number | Buffer;

/**
 * A command that runs a script. An ordinary ioredis command would cost more CPU time than everything else in a start. This
 * one is encoded once, encodes strings as latin1, and shares one timer with all others.
 */
export class ScriptCommand extends Command {
  /** The command in Redis' protocol. (A private field would cost as much CPU time as the rest of the constructor.) */
  readonly encoded: Buffer;
  /** When it is rejected, on the clock of `performance`. 0: it was not sent yet. */
  dueMs = 0;

  /** @param parts the SHA-1 of the script for `evalsha`, its text for `eval`; the number of keys, the keys, the arguments */
  constructor(name: 'evalsha' | 'eval', parts: readonly Argument[]) {
    super(name, NO_ARGUMENTS, REPLY_AS_BYTES);
    // The cluster client finds the node by the keys. ioredis shows what is here to tracers and in errors, so no record is.
    this.args = parts.slice(0, 2 + Number(parts[1]));
    this.encoded = encode(name, parts);
  }

  override toWritable(): Buffer {
    return this.encoded;
  }

  /** Called by ioredis each time it sends the command. After a redirection within a cluster that is more than once. */
  override setTimeout(ms: number): void {
    if (this.dueMs > 0) return;
    this.dueMs = performance.now() + ms;
    if (unanswered.push(this) === 1) checkLater();
    if (unanswered.length >= dropAt) dropAnswered();
  }
}

const NO_ARGUMENTS: string[] = [];
const REPLY_AS_BYTES = { replyEncoding: null };

/** Parts up to this size are joined to the text around them, because one long write is faster than many short ones. */
const TEXT_BYTES = 512;

/** The line that begins a part, behind the end of the part before it, by the part's length. */
const HEADS = Array.from({ length: TEXT_BYTES + 1 }, (_, length) => `\r\n$${length}\r\n`);

function encode(name: string, parts: readonly Argument[]): Buffer {
  const long: [before: string, part: Buffer][] = [];
  let bytes = 0;
  let text = `*${1 + parts.length}${HEADS[name.length]}${name}`;
  for (const each of parts) {
    const part = typeof each === 'number' ? String(each) : each;
    text += HEADS[part.length] ?? `\r\n$${part.length}\r\n`;
    if (typeof part === 'string') text += part;
    else if (part.length <= TEXT_BYTES) text += part.toString('latin1');
    else {
      bytes += text.length + part.length;
      long.push([text, part]);
      text = '';
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

const CHECK_EVERY_MS = 10;

/** The commands that had no answer when they were last looked at, and the later ones. */
let unanswered: ScriptCommand[] = [];
const SHORTEST_LIST = 64;
/** An answered command is dropped soon: what is still known at the next minor collection makes that collection slow. */
let dropAt = SHORTEST_LIST;

function dropAnswered(): void {
  unanswered = unanswered.filter((command) => !command.isSettled);
  dropAt = Math.max(SHORTEST_LIST, 2 * unanswered.length);
}

function checkLater(): void {
  setTimeout(() => afterReading(check), CHECK_EVERY_MS);
}

/** Rejects the commands that have no answer in time, by one timer for all of them. */
function check(): void {
  const nowMs = performance.now();
  for (const command of unanswered)
    if (!command.isSettled && command.dueMs <= nowMs) command.reject(new Error('Command timed out'));
  dropAnswered();
  if (unanswered.length > 0) checkLater();
}
