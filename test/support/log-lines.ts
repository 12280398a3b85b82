import { type LoggerOptions, pino } from 'pino';
import { expect } from 'vitest';
import * as z from 'zod';
import { EVENTS } from '../../src/telemetry/events.ts';
import type { LogEvent, LogField } from '../../src/telemetry/log-event.ts';
import { atEndOfFile } from './at-end-of-file.ts';

/** The sandbox's secret keys, those of tests, and those that `oncegate keys issue` makes. */
const SECRET = /\b(?:sk_(?:sandbox|test|live)_\w|og_(?:live|test)_\w)/;

const hex = (digits: number) => z.string().regex(new RegExp(`^[0-9a-f]{${digits}}$`));

const TYPES = {
  text: z.string(),
  texts: z.array(z.string()),
  integer: z.int(),
  number: z.number(),
  milliseconds: z.number().min(0),
  true: z.literal(true),
  error: z.strictObject({
    ...{ type: z.string(), message: z.string(), stack: z.string() },
    code: z.union([z.string(), z.number()]).optional(),
  }),
  digest: z.strictObject({
    state: z.enum(['executing', 'completed', 'in_doubt', 'absent', 'unreadable']),
    ...{ status: z.int().optional(), bodyBytes: z.int().optional(), bodySha256: hex(16).optional() },
  }),
};

function schemaOf(name: string, { is, digits, isOptional }: LogField): z.ZodType {
  const ofType = typeof is === 'string' ? TYPES[is] : z.enum(is as string[]);
  const requestId = name === 'requestId' && z.string().regex(/^[A-Za-z0-9._-]{8,128}$/);
  const schema = digits === undefined ? requestId || ofType : hex(digits);
  return isOptional ? schema.optional() : schema;
}

/** One line of the log, as the gateway's own logger writes it. Unknown messages and unknown fields are refused. */
const logLine = z.discriminatedUnion(
  'msg',
  Object.values<LogEvent>(EVENTS).map(({ message, level, laterLevel = level, fields }) =>
    z.strictObject({
      level: z.enum([level, laterLevel]),
      time: z.iso.datetime({ precision: 3 }),
      pid: z.int().min(1),
      ...Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, schemaOf(name, field)])),
      msg: z.literal(message),
    }),
  ) as unknown as [z.ZodObject<{ msg: z.ZodLiteral<string> }>],
);

/** Names of levels, because a test's own pino writes numbers. */
const LEVELS: Record<number, string> = { 20: 'debug', 30: 'info', 40: 'warn', 50: 'error', 60: 'fatal' };

/** The first line of each message that is not in the catalogue, with what is wrong. */
const wrong = new Map<unknown, string>();
atEndOfFile(() => {
  const mistakes = [...wrong.values()];
  wrong.clear();
  expect(mistakes, 'lines of the log that are not in its catalogue').toEqual([]);
});

/** Compares a line that a gateway has written with the catalogue of log lines. The test file fails at its end if one is not there. */
export function checkLine(text: string, line: Record<string, unknown>): void {
  const mistake = mistakeIn(text, line);
  if (mistake !== undefined && !wrong.has(line.msg)) wrong.set(line.msg, `${mistake}\n${text}`);
}

/** What is wrong with a line, or undefined. */
export function mistakeIn(text: string, line: Record<string, unknown>): string | undefined {
  if (SECRET.test(text)) return 'it has a secret key';
  const { hostname, level, time, ...rest } = line;
  const named = typeof level === 'number' ? LEVELS[level] : level;
  const at = typeof time === 'number' ? new Date(time).toISOString() : time;
  const { error } = logLine.safeParse({ level: named, time: at, ...rest });
  return error?.issues.map(({ path, message }) => `${path.join('.')}: ${message}`).join('; ');
}

/** A logger that checks its lines and keeps them, parsed. */
export function keptLog(options: LoggerOptions = {}) {
  const log: Record<string, unknown>[] = [];
  const write = (text: string) => {
    for (const line of text.trimEnd().split('\n')) {
      const fields = JSON.parse(line);
      checkLine(line, fields);
      log.push(fields);
    }
  };
  return { log, logger: pino({ level: 'debug', ...options }, { write }) };
}
