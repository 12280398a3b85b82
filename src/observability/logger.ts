import { pino } from 'pino';

export type Logger = pino.Logger;

const WRITTEN_BYTES = 32_768;
const WRITTEN_WITHIN_MS = 100;
/** Lines beyond are dropped while the output takes none, or the process would run out of memory. */
const MOST_UNWRITTEN_BYTES = 16_777_216;

/**
 * Standard output. An output that takes nothing (a full disk, a terminal that has closed) must not end the gateway: lines
 * wait until it does, and the last ones are lost.
 */
function standardOutput() {
  // Lines are written together: each write costs a system call, and a switch to another thread and back.
  const output = pino.destination({
    dest: 1,
    sync: false,
    minLength: WRITTEN_BYTES,
    maxWrite: 2 * WRITTEN_BYTES,
    maxLength: MOST_UNWRITTEN_BYTES,
    periodicFlush: WRITTEN_WITHIN_MS,
  });
  let failing = false;
  output.on('error', () => {
    failing = true;
  });
  output.on('write', () => {
    failing = false;
  });
  const flushSync = output.flushSync.bind(output);
  // Called while the process exits. The library repeats a failed write there without end.
  output.flushSync = () => {
    if (!failing) flushSync();
  };
  return output;
}

/**
 * JSON lines on standard output. Nothing of a request is logged but what the access line names; the redaction is
 * the second lock on the same door. A process that is killed takes the last tenth of a second's lines with it.
 */
export function createLogger(level: string): Logger {
  return pino(
    {
      level,
      base: { pid: process.pid },
      timestamp: pino.stdTimeFunctions.isoTime,
      formatters: { level: (label) => ({ level: label }) },
      redact: {
        paths: [
          'authorization',
          'headers',
          'body',
          'secret',
          '*.authorization',
          '*.headers',
          '*.body',
          '*.secret',
        ],
        censor: '[redacted]',
      },
    },
    standardOutput(),
  );
}

/** Each hands on the lines of a turn that has not ended. */
const requestLogs: (() => void)[] = [];
// Before the streams' own last flush.
process.prependListener('exit', () => {
  for (const handOn of requestLogs) handOn();
});

/**
 * Writes one line for each request, as `logger.info(fields, 'request')` would, without looking for what must not be logged:
 * whoever calls this names every field. It is the only line that an ordinary request writes, and costs a third so. A turn's
 * lines are handed on together.
 */
export function requestLog(logger: Logger): (fields: object) => void {
  if (!logger.isLevelEnabled('info')) return () => {};
  const stream = (logger as unknown as Record<symbol, { write(line: string): void }>)[pino.symbols.streamSym];
  let lines = '';
  let [timeMs, time] = [0, ''];
  const handOn = () => {
    const all = lines;
    lines = '';
    if (all !== '') stream?.write(all);
  };
  requestLogs.push(handOn);
  return (fields) => {
    if (lines === '') setImmediate(handOn);
    const nowMs = Date.now();
    if (nowMs !== timeMs) [timeMs, time] = [nowMs, new Date(nowMs).toISOString()];
    const head = `{"level":"info","time":"${time}","pid":${process.pid},`;
    lines += `${head}${JSON.stringify(fields).slice(1, -1)},"msg":"request"}\n`;
  };
}

/**
 * A path as it may be logged, where it is none of a declared operation. Anybody can put anything there, an account
 * number or a secret key too: segments stay that are a short plain word or a version, and no others.
 */
export function loggablePath(path: string): string {
  const segments = path.split('/', MOST_SEGMENTS);
  return segments.map((segment) => (PLAIN.test(segment) ? segment : ':redacted')).join('/');
}

const MOST_SEGMENTS = 12;
const PLAIN = /^(?:v\d{1,2}|[a-z]{0,16})$/i;
