import { writeSync } from 'node:fs';
import { pino } from 'pino';
import { EVENTS } from './events.ts';

/** A logger of pino 10. */
export type Logger = pino.Logger;

/** Lines are buffered up to this size or this time: each write costs a system call and two switches of thread. */
const BUFFER_BYTES = 32_768;
const FLUSH_EVERY_MS = 100;
/** The lines of requests are collected for this time at most before they are buffered. */
const COLLECT_MS = 10;
/** While the output accepts nothing, further lines are dropped. Otherwise the process would run out of memory. */
const MAX_UNWRITTEN_BYTES = 16_777_216;

/**
 * Standard output. An output that accepts nothing (a full disk, a closed terminal) must not end the gateway: lines wait
 * until the output accepts them again, and those that still wait at exit are lost.
 */
function standardOutput() {
  const output = pino.destination({
    // Not the number 1: Node makes a pipe non-blocking when it makes `process.stdout`. A write to a full pipe would otherwise block its thread, and the
    // process could never exit if the reader has stopped.
    dest: process.stdout.fd,
    sync: false,
    minLength: BUFFER_BYTES,
    maxWrite: 2 * BUFFER_BYTES,
    maxLength: MAX_UNWRITTEN_BYTES,
    periodicFlush: FLUSH_EVERY_MS,
  });
  // Without a listener, an output that cannot be written would end the process.
  output.on('error', () => {});
  output.flushSync = () => flushAtExit(output as unknown as Buffered);
  return output;
}

/** Private members of sonic-boom: the lines that it has not written. While `_writing`, another thread writes `_writingBuf`. */
interface Buffered {
  _writing: boolean;
  _writingBuf: string;
  _bufs: string[];
}

const STDOUT = 1;
/** How long the exit may wait for the slow reader of a full pipe. */
const FLUSH_AT_EXIT_MS = 1000;
const RETRY_MS = 10;

/**
 * Writes the last lines while the process exits. sonic-boom's own method repeats a write that fails, and a process whose
 * log reader has gone would never exit.
 */
function flushAtExit({ _writing, _writingBuf, _bufs }: Buffered): void {
  let rest = Buffer.from((_writing ? '' : _writingBuf) + _bufs.splice(0).join(''));
  const giveUpMs = performance.now() + FLUSH_AT_EXIT_MS;
  while (rest.length > 0) {
    try {
      rest = rest.subarray(writeSync(STDOUT, rest));
    } catch (error) {
      const isFull = (error as NodeJS.ErrnoException).code === 'EAGAIN';
      if (!isFull || performance.now() > giveUpMs) return;
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_MS);
    }
  }
}

/** What of an error is logged. Its other fields could be anything, such as the options of a request. */
export const serializers = {
  err: (error: Error & { code?: string | number }) => {
    const { type, message, stack } = pino.stdSerializers.err(error);
    return { type, message, stack, ...(error.code === undefined ? {} : { code: error.code }) };
  },
};

/**
 * JSON lines on standard output. Callers log named fields only, never a request; the redaction is a second line of
 * defence. A process that is killed loses the lines of its last 100 ms.
 */
export function createLogger(level: string): Logger {
  return pino(
    {
      level,
      base: { pid: process.pid },
      serializers,
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: {
        paths: ['authorization', 'headers', 'body', 'secret'].flatMap((name) => [name, `*.${name}`]),
        censor: '[redacted]',
      },
    },
    standardOutput(),
  );
}

/** Each passes on the lines that one request log has collected, at exit without waiting for more. */
const requestLogFlushes: ((isExit: boolean) => void)[] = [];
// Runs before the streams' own last flush.
process.prependListener('exit', () => {
  for (const flush of requestLogFlushes) flush(true);
});

/**
 * Writes one line for each request, as `logger.info(fields, message)` would, at a third of the cost: it does not redact,
 * so the caller must name every field. It collects lines and passes them on together, after a turn of the event loop that adds
 * none, or when they have reached `BUFFER_BYTES` or `COLLECT_MS`: a write costs sonic-boom time for everything that it already holds.
 */
export function requestLogger(logger: Logger): (fields: object) => void {
  const { message } = EVENTS.request;
  const stream = (logger as unknown as Record<symbol, { write(line: string): void }>)[pino.symbols.streamSym];
  // Another copy of pino, that of the application around us, has other symbols.
  if (!stream) return (fields) => logger.info(fields, message);
  let lines = '';
  let lengthLastTurn = 0;
  let firstLineMs = 0;
  let [timeMs, time] = [0, ''];
  const flush = (isExit = false) => {
    const mayWait = lines.length < BUFFER_BYTES && timeMs - firstLineMs < COLLECT_MS;
    if (lines.length > lengthLastTurn && mayWait && !isExit) {
      lengthLastTurn = lines.length;
      setImmediate(flush);
      return;
    }
    const all = lines;
    lines = '';
    lengthLastTurn = 0;
    if (all !== '') stream.write(all);
  };
  requestLogFlushes.push(flush);
  return (fields) => {
    // Asked for each line, because a reload of the configuration may change the level.
    if (!logger.isLevelEnabled('info')) return;
    const nowMs = Date.now();
    if (nowMs !== timeMs) [timeMs, time] = [nowMs, new Date(nowMs).toISOString()];
    if (lines === '') {
      firstLineMs = nowMs;
      setImmediate(flush);
    }
    const head = `{"level":"info","time":"${time}","pid":${process.pid},`;
    lines += `${head}${JSON.stringify(fields).slice(1, -1)},"msg":"${message}"}\n`;
  };
}

/**
 * Makes an undeclared path safe to log. Clients may put anything into it, an account number or a secret key included. So
 * only segments that are a short plain word or a version are kept.
 */
export function loggablePath(path: string): string {
  const segments = path.split('/', MAX_SEGMENTS);
  return segments.map((segment) => (PLAIN.test(segment) ? segment : ':redacted')).join('/');
}

const MAX_SEGMENTS = 12;
const PLAIN = /^(?:v\d{1,2}|[a-z]{0,16})$/i;
