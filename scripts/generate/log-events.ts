import * as z from 'zod';
import { OUTCOMES, WOULD } from '../../src/telemetry/catalogue.ts';

type Level = 'error' | 'warn' | 'info' | 'debug';

interface LogEvent {
  /** The field `msg`. It never changes with what happened: the fields say that. */
  readonly msg: string;
  readonly levels: readonly [Level, ...Level[]];
  /** What has happened, and what to do, in one or two sentences for the operator. */
  readonly meaning: string;
  readonly fields: Readonly<Record<string, z.ZodType>>;
}

/** Makes events of these levels. */
const at =
  (...levels: LogEvent['levels']) =>
  (msg: string, meaning: string, fields: LogEvent['fields']): LogEvent => ({ msg, levels, meaning, fields });
const [error, warn, info, debug] = [at('error'), at('warn'), at('info'), at('debug')];

/** A field that is a text, or a whole number. */
const text = (about: string) => z.string().describe(about);
const int = (about: string) => z.int().describe(about);
/** A field with so many hexadecimal digits. */
const hex = (digits: number, about = '') =>
  z
    .string()
    .regex(new RegExp(`^[0-9a-f]{${digits}}$`))
    .describe(about);

// Fields that several events have. None has an idempotency key, a secret, a header or a body.
const merchant = text('the merchant code');
const operation = text(
  'a name of the configuration, `other` or `undeclared`; `none`: refused before it was identified',
);
const recordId = hex(16, 'the first 16 digits of the record’s id');
const requestId = z
  .string()
  .regex(/^[A-Za-z0-9._-]{8,128}$/)
  .describe('the request id: that of the merchant’s `X-Request-Id` if it is well-formed');
const traceId = hex(32, 'the trace that the request belongs to, if it has one').optional();
const client = text('the address of the client');
const by = text('who');
const reason = text('why, in words');
const ms = z.number().min(0);
const keyed = { recordId, merchant, operation, requestId: requestId.optional(), traceId };
const err = z
  .strictObject({
    type: z.string(),
    message: z.string(),
    stack: z.string(),
    code: z.union([z.string(), z.number()]).optional(),
  })
  .describe('the error: `type`, `message`, `stack`, and `code` if it has one');
const digest = z.strictObject({
  state: z.enum(['executing', 'completed', 'in_doubt', 'absent', 'unreadable']),
  status: z.int().optional(),
  bodyBytes: z.int().optional(),
  bodySha256: hex(16).optional(),
});
const certificate = z.enum(['listen', 'upstream', 'store']).describe('the section that names its files');

/** Every line that the gateway writes. The table of docs/operations.md is made from it. */
export const LOG_EVENTS: readonly LogEvent[] = [
  info('request', 'A request has ended.', {
    requestId,
    traceId,
    client: client.optional(),
    merchant: merchant.optional(),
    keyId: text('the id of the secret key, not the secret').optional(),
    operation,
    method: text('the method').optional(),
    path: text('the declared path or pattern; of other paths, plain words only'),
    status: int('the status of the answer; absent if none was sent').optional(),
    outcome: z
      .enum(OUTCOMES)
      .describe('how it ended: executed, replayed, …, or the code of the gateway’s own answer'),
    would: z.enum(WOULD).describe('under `mode: observe`, what `mode: protect` would have done').optional(),
    recordId: recordId.optional(),
    ignoredKeyHeaders: text(
      'headers that hold another key, which was not used: an earlier one of `idempotency.headers` decides',
    ).optional(),
    durationMs: ms.describe('from the head of the request to the end of the answer'),
    upstreamMs: ms.describe('time of the backend'),
    waitMs: ms.describe('time spent waiting for another request with the same key'),
    merchantGone: z
      .literal(true)
      .describe('the merchant disconnected before the answer was complete')
      .optional(),
  }),
  info('malformed request', 'Bytes that are no valid HTTP request were refused before a request began.', {
    outcome: z.enum(OUTCOMES).describe('the code of the answer'),
  }),
  error(
    'a request failed within the gateway',
    'A mistake of the gateway: the merchant got 500 `internal_error`. Report it with this line.',
    { requestId, traceId, err },
  ),
  warn('the outcome of an execution is unknown', 'The key is in doubt. See OncegateInDoubt.', {
    ...keyed,
    reason,
  }),
  warn(
    'a request whose outcome is unknown is sent again',
    'Under `inDoubt: retry`, the backend gets the request once more.',
    keyed,
  ),
  warn('a lease lapsed while its owner was alive', 'The gateway was paused, or the store is slow.', keyed),
  warn(
    'a write was refused: another execution owns the record',
    'The gateway was paused for longer than a lease, and the key was resolved or executed meanwhile.',
    { ...keyed, write: text('the command to the store') },
  ),
  error(
    'a late response was not stored: the key has another result',
    'The backend answered after the key had been resolved. If the two results differ, compare with its books.',
    {
      ...keyed,
      late: digest.describe('the response: state, status, length and hash of its body'),
      stored: digest.describe('the same of what the store holds'),
    },
  ),
  error(
    'the response was sent before it was stored',
    'The store did not take it in time; the gateway repeats the write. See OncegateCompleteLate.',
    { ...keyed, reason },
  ),
  error(
    'the response was sent and never stored, and this process ends: the key may be in doubt',
    'The store did not answer until the end of the shutdown. Resolve the key as completed.',
    keyed,
  ),
  warn(
    'waiting for the store to take the last writes before this process ends',
    'Bring the store back, and do not kill the process.',
    {
      writes: int('how many writes the store has not acknowledged'),
      completeMs: ms.describe('how long it waits at most'),
    },
  ),
  at('warn', 'debug')(
    'a lookup did not decide a key in doubt',
    'The backend’s answer fits none of the lookup’s statuses. Only the first one of a key is a warning.',
    {
      ...keyed,
      said: text('what the backend answered'),
      times: int('how many lookups of this key did not decide'),
    },
  ),
  info(
    'a key in doubt was resolved',
    'By an operator on the admin port, or by a lookup. The audit trail has it too.',
    {
      ...keyed,
      by,
      reason,
      from: z.enum(['executing', 'in_doubt']).describe('the state before'),
      to: z.enum(['completed', 'released']).describe('the state after'),
    },
  ),
  error(
    'a record cannot be read',
    'Its merchant gets 503 and nothing is executed. See `oncegate_unreadable_records_total`.',
    {
      recordId,
      reason: z.enum(['damaged', 'unknown_key', 'not_authentic']).describe('which kind of damage'),
      why: text('what is wrong with it'),
    },
  ),
  error(
    'the clock of Redis’ host was stepped: records expire early or late',
    'Slew that clock, never step it.',
    { stepMs: z.number().describe('by how much; positive: forwards') },
  ),
  error(
    'the store’s writer thread died and was replaced',
    'The gateway continues. If it happens again, report it.',
    { err },
  ),
  error(
    'the store has changed',
    'It is another one, was emptied, or was restored: keys that it has forgotten can be paid again. No new key is started until an operator accepts it.',
    { warning: text('what was noticed') },
  ),
  warn(
    'the store was accepted',
    'An operator has accepted a store that forgot keys (`oncegate store accept`). The gateway starts new keys again.',
    { at: text('when, as ISO 8601'), by, reason, what: text('what was accepted') },
  ),
  warn(
    'something needs attention',
    'A warning about the configuration, the store, keys or certificates, at the start, after a reload, or when it begins.',
    { warning: text('one line; the word before the colon says what it is about') },
  ),
  warn(
    'the backend cannot check a secret key',
    'With `auth.keys.source: upstream`: the request got 503. See [Keys of the backend](#keys-of-the-backend).',
    { reason },
  ),
  error(
    'the backend names another merchant for a secret key than before: the key is refused',
    'Ask the backend’s owners. See [Keys of the backend](#keys-of-the-backend).',
    { from: text('the merchant code before'), to: text('the merchant code now') },
  ),
  info('the secret keys were reloaded', 'Changed keys are in force.', { keys: int('how many there are') }),
  error('the secret keys cannot be reloaded; the old ones stay in force', 'See OncegateKeyFileRefused.', {
    reason,
  }),
  warn(
    'the keys in doubt cannot be counted: the metrics show those of the last count',
    'The store does not answer, or its Redis user may not count. Logged once until a count succeeds.',
    { reason },
  ),
  warn(
    'spans were lost: the collector did not take them',
    'Traces lack spans; requests are not affected. At most once a minute, and at the end. See `oncegate_spans_total`.',
    { spans: int('how many spans were lost since the last such line'), reason },
  ),
  warn(
    'the limits of merchants are not shared: Redis does not answer',
    'Each gateway counts the requests of merchants by itself meanwhile.',
    { reason },
  ),
  info('the limits of merchants are shared again', 'Redis answers again.', {}),
  info('a certificate was reloaded', 'New connections use it.', { certificate }),
  error('a new certificate is refused; the old one stays in use', 'See [Certificates](#certificates).', {
    certificate,
    reason,
  }),
  debug('a TLS handshake failed', 'A client disconnected, was too slow, or was refused.', {
    reason: z.enum(['disconnected', 'timeout', 'refused']).describe('who gave up'),
    code: text('the error code'),
  }),
  info('the configuration was reloaded', 'The changed options are in force.', {
    changed: z.array(z.string()).describe('the sections that changed'),
  }),
  warn(
    'the changed configuration needs a restart',
    'These options keep their old values until the gateway is restarted.',
    { options: z.array(z.string()).describe('their paths') },
  ),
  error('the new configuration is refused; the old one stays in force', 'See OncegateConfigRefused.', {
    mistakes: z.array(z.string()).describe('all mistakes of the file, without secrets'),
  }),
  info('listening', 'The gateway serves.', {
    port: int('the port for merchants'),
    adminPort: int('the admin port').optional(),
    mode: z.enum(['protect', 'observe']).describe('`idempotency.mode`').optional(),
    version: text('the version of the gateway').optional(),
    node: text('the version of Node').optional(),
    commit: text('the commit of the build, or unknown').optional(),
  }),
  info('shutting down', 'A signal ends the gateway when its running requests have ended.', {
    signal: z.enum(['SIGTERM', 'SIGINT']).describe('the signal that began the shutdown'),
  }),
  info('somebody logged in to the console', 'With `admin.token`, or with one of `admin.tokens`.', {
    by,
    client,
  }),
  warn(
    'a login to the console was refused: wrong token',
    'If it comes often, someone guesses tokens. A token that an address repeats has one line in five minutes.',
    { client },
  ),
  warn(
    'a request on the admin port was refused: wrong token',
    'A Prometheus or a program has an old token; or, if it comes often, someone guesses tokens. A token that an address repeats has one line in five minutes.',
    {
      path: z.enum(['/metrics', '/records']).describe('what was asked for'),
      client,
    },
  ),
  info(
    'a stored response was read in the console',
    'Somebody saw what a merchant got. Its record id is whole here.',
    { by, recordId: hex(64, 'the record’s id'), client },
  ),
  error('a request on the admin port failed', 'A mistake of the gateway. Report it with this line.', { err }),
  warn(
    'the handler pipes the response of another server: a proxy that stops when the merchant disconnects, or that answers for a request that it never sent, leaves keys in doubt; use forward()',
    'Only of the npm package.',
    { operation },
  ),
];

/** One line of the log, as the gateway's own logger writes it. Unknown messages and unknown fields are refused. */
export const logLine = z.discriminatedUnion(
  'msg',
  LOG_EVENTS.map((event: LogEvent) =>
    z.strictObject({
      level: z.enum(event.levels),
      time: z.iso.datetime({ precision: 3 }),
      pid: z.int().min(1),
      ...event.fields,
      msg: z.literal(event.msg),
    }),
  ) as unknown as [z.ZodObject<{ msg: z.ZodLiteral<string> }>],
);
