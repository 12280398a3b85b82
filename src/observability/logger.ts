import { pino } from 'pino';

export type Logger = pino.Logger;

/**
 * JSON lines on standard output. Nothing of a request is logged but what the access line names; the redaction is
 * the second lock on the same door.
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
    pino.destination({ dest: 1, sync: false }),
  );
}

/**
 * A path as it may be logged. Segments that do not read like words (account numbers, keys, ids) are left out, since
 * anybody can put anything there.
 */
export function loggablePath(target: string): string {
  const [path = '/'] = target.split('?', 1);
  const segments = path.split('/').map((segment) => (isWord(segment) ? segment : ':redacted'));
  return segments.slice(0, 12).join('/');
}

const isWord = (segment: string): boolean =>
  /^(?:[a-z][a-z._-]{0,31}\d{0,3}(?:\.[a-z]{1,5})?)?$/i.test(segment);
