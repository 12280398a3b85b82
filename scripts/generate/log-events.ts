import * as z from 'zod';
import { OUTCOMES, WOULD } from '../../src/telemetry/catalogue.ts';

type Level = 'fatal' | 'error' | 'warn' | 'info' | 'debug';

interface LogEvent {
  /** The field `msg`. It never changes with what happened: the fields say that. */
  readonly msg: string;
  readonly levels: readonly [Level, ...Level[]];
  /** What has happened, and what to do, in one or two sentences for the operator. */
  readonly meaning: string;
  readonly fields: z.ZodRawShape;
}

// Fields that several events have. None has an idempotency key, a secret, a header or a body.
const merchant = z.string().describe('the merchant code');
const operation = z
  .string()
  .describe('a name of the configuration, `other` or `undeclared`; `none`: refused before it was identified');
const scope = z
  .string()
  .regex(/^[0-9a-f]{16}$/)
  .describe('the first 16 digits of the record’s scope');
const requestId = z
  .string()
  .regex(/^[A-Za-z0-9._-]{8,128}$/)
  .describe('the request id: that of the merchant’s `X-Request-Id` if it is well-formed');
const traceId = z
  .string()
  .regex(/^[0-9a-f]{32}$/)
  .describe('the trace that the request belongs to, if it has one')
  .optional();
const reason = z.string().describe('why, in words');
const ms = z.number().min(0);
const keyed = { scope, merchant, operation, requestId: requestId.optional(), traceId };
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
  bodySha256: z
    .string()
    .regex(/^[0-9a-f]{16}$/)
    .optional(),
});
const certificate = z.enum(['listen', 'upstream', 'store']).describe('the section that names its files');
const writes = z.int().describe('how many writes the store has not acknowledged');

/** Every line that the gateway writes. The table of docs/operations.md is made from it. */
export const LOG_EVENTS = [
  {
    msg: 'request',
    levels: ['info'],
    meaning: 'A request has ended.',
    fields: {
      requestId,
      traceId,
      client: z.string().describe('the address of the client').optional(),
      merchant: merchant.optional(),
      keyId: z.string().describe('the id of the secret key, not the secret').optional(),
      operation,
      method: z.string().describe('the method').optional(),
      path: z.string().describe('the declared path or pattern; of other paths, plain words only'),
      status: z.int().describe('the status of the answer; absent if none was sent').optional(),
      outcome: z
        .enum(OUTCOMES)
        .describe('how it ended: executed, replayed, …, or the code of the gateway’s own answer'),
      would: z.enum(WOULD).describe('under `mode: observe`, what `mode: protect` would have done').optional(),
      scope: scope.optional(),
      ignoredKeyHeaders: z
        .string()
        .describe(
          'headers that hold another key, which was not used: an earlier one of `idempotency.headers` decides',
        )
        .optional(),
      durationMs: ms.describe('from the head of the request to the end of the answer'),
      upstreamMs: ms.describe('time of the backend'),
      waitMs: ms.describe('time spent waiting for another request with the same key'),
      merchantGone: z
        .literal(true)
        .describe('the merchant disconnected before the answer was complete')
        .optional(),
    },
  },
  {
    msg: 'malformed request',
    levels: ['info'],
    meaning: 'Bytes that are no valid HTTP request were refused before a request began.',
    fields: { outcome: z.enum(OUTCOMES).describe('the code of the answer') },
  },
  {
    msg: 'a request failed within the gateway',
    levels: ['error'],
    meaning: 'A mistake of the gateway: the merchant got 500 `internal_error`. Report it with this line.',
    fields: { requestId, traceId, err },
  },
  {
    msg: 'the outcome of an execution is unknown',
    levels: ['warn'],
    meaning: 'The key is in doubt. See OncegateInDoubt.',
    fields: { ...keyed, reason },
  },
  {
    msg: 'a request whose outcome is unknown is sent again',
    levels: ['warn'],
    meaning: 'Under `inDoubt: retry`, the backend gets the request once more.',
    fields: keyed,
  },
  {
    msg: 'a lease lapsed while its owner was alive',
    levels: ['warn'],
    meaning: 'The gateway was paused, or the store is slow.',
    fields: keyed,
  },
  {
    msg: 'a write was refused: another execution owns the record',
    levels: ['warn'],
    meaning:
      'The gateway was paused for longer than a lease, and the key was resolved or executed meanwhile.',
    fields: { ...keyed, write: z.string().describe('the command to the store') },
  },
  {
    msg: 'a late response was not stored: the key has another result',
    levels: ['error'],
    meaning:
      'The backend answered after the key had been resolved. If the two results differ, compare with its books.',
    fields: {
      ...keyed,
      late: digest.describe('the response: state, status, length and hash of its body'),
      stored: digest.describe('the same of what the store holds'),
    },
  },
  {
    msg: 'the response was sent before it was stored',
    levels: ['error'],
    meaning: 'The store did not take it in time; the gateway repeats the write. See OncegateCompleteLate.',
    fields: { ...keyed, reason },
  },
  {
    msg: 'the response was sent and never stored, and this process ends: the key may be in doubt',
    levels: ['error'],
    meaning: 'The store did not answer until the end of the shutdown. Resolve the key as completed.',
    fields: keyed,
  },
  {
    msg: 'waiting for the store to take the last writes before this process ends',
    levels: ['warn'],
    meaning: 'Bring the store back, and do not kill the process.',
    fields: { writes, completeMs: ms.describe('how long it waits at most') },
  },
  {
    msg: 'a lookup did not decide a key in doubt',
    levels: ['warn', 'debug'],
    meaning:
      'The backend’s answer fits none of the lookup’s statuses. Only the first one of a key is a warning.',
    fields: {
      ...keyed,
      said: z.string().describe('what the backend answered'),
      times: z.int().describe('how many lookups of this key did not decide'),
    },
  },
  {
    msg: 'a key in doubt was resolved',
    levels: ['info'],
    meaning: 'By an operator on the admin port, or by a lookup. The audit trail has it too.',
    fields: {
      ...keyed,
      by: z.string().describe('who'),
      reason: z.string().describe('the reason that was given'),
      from: z.enum(['executing', 'in_doubt']).describe('the state before'),
      to: z.enum(['completed', 'released']).describe('the state after'),
    },
  },
  {
    msg: 'a record cannot be read',
    levels: ['error'],
    meaning: 'Its merchant gets 503 and nothing is executed. See `oncegate_unreadable_records_total`.',
    fields: {
      scope,
      reason: z.enum(['damaged', 'unknown_key', 'not_authentic']).describe('which kind of damage'),
      why: z.string().describe('what is wrong with it'),
    },
  },
  {
    msg: 'the clock of Redis’ host was stepped: records expire early or late',
    levels: ['error'],
    meaning: 'Slew that clock, never step it.',
    fields: { stepMs: z.number().describe('by how much; positive: forwards') },
  },
  {
    msg: 'the store’s writer thread died and was replaced',
    levels: ['error'],
    meaning: 'The gateway continues. If it happens again, report it.',
    fields: { err },
  },
  {
    msg: 'the store has changed',
    levels: ['error'],
    meaning:
      'It is another one, was emptied, or was restored: keys that it has forgotten can be paid again. No new key is started until an operator accepts it.',
    fields: { warning: z.string().describe('what was noticed') },
  },
  {
    msg: 'the store was accepted',
    levels: ['warn'],
    meaning:
      'An operator has accepted a store that forgot keys (`oncegate store accept`). The gateway starts new keys again.',
    fields: {
      at: z.string().describe('when, as ISO 8601'),
      by: z.string().describe('who'),
      reason: z.string().describe('why'),
      what: z.string().describe('what was accepted'),
    },
  },
  {
    msg: 'something needs attention',
    levels: ['warn'],
    meaning:
      'A warning about the configuration, the store, keys or certificates, at the start, after a reload, or when it begins.',
    fields: { warning: z.string().describe('one line; the word before the colon says what it is about') },
  },
  {
    msg: 'the backend cannot check a secret key',
    levels: ['warn'],
    meaning:
      'With `auth.keys.source: upstream`: the request got 503. See [Keys of the backend](#keys-of-the-backend).',
    fields: { reason },
  },
  {
    msg: 'the backend names another merchant for a secret key than before: the key is refused',
    levels: ['error'],
    meaning: 'Ask the backend’s owners. See [Keys of the backend](#keys-of-the-backend).',
    fields: {
      from: z.string().describe('the merchant code before'),
      to: z.string().describe('the merchant code now'),
    },
  },
  {
    msg: 'the secret keys were reloaded',
    levels: ['info'],
    meaning: 'Changed keys are in force.',
    fields: { keys: z.int().describe('how many there are') },
  },
  {
    msg: 'the secret keys cannot be reloaded; the old ones stay in force',
    levels: ['error'],
    meaning: 'See OncegateKeyFileRefused.',
    fields: { reason },
  },
  {
    msg: 'the keys in doubt cannot be counted: the metrics show those of the last count',
    levels: ['warn'],
    meaning:
      'The store does not answer, or its Redis user may not count. Logged once until a count succeeds.',
    fields: { reason },
  },
  {
    msg: 'spans were lost: the collector did not take them',
    levels: ['warn'],
    meaning:
      'Traces lack spans; requests are not affected. At most once a minute, and at the end. See `oncegate_spans_total`.',
    fields: {
      spans: z.int().describe('how many spans were lost since the last such line'),
      reason,
    },
  },
  {
    msg: 'the limits of merchants are not shared: Redis does not answer',
    levels: ['warn'],
    meaning: 'Each gateway counts the requests of merchants by itself meanwhile.',
    fields: { reason },
  },
  {
    msg: 'the limits of merchants are shared again',
    levels: ['info'],
    meaning: 'Redis answers again.',
    fields: {},
  },
  {
    msg: 'a certificate was reloaded',
    levels: ['info'],
    meaning: 'New connections use it.',
    fields: { certificate },
  },
  {
    msg: 'a new certificate is refused; the old one stays in use',
    levels: ['error'],
    meaning: 'See [Certificates](#certificates).',
    fields: { certificate, reason },
  },
  {
    msg: 'a TLS handshake failed',
    levels: ['debug'],
    meaning: 'A client disconnected, was too slow, or was refused.',
    fields: {
      reason: z.enum(['disconnected', 'timeout', 'refused']).describe('who gave up'),
      code: z.string().describe('the error code'),
    },
  },
  {
    msg: 'the configuration was reloaded',
    levels: ['info'],
    meaning: 'The changed options are in force.',
    fields: { changed: z.array(z.string()).describe('the sections that changed') },
  },
  {
    msg: 'the changed configuration needs a restart',
    levels: ['warn'],
    meaning: 'These options keep their old values until the gateway is restarted.',
    fields: { options: z.array(z.string()).describe('their paths') },
  },
  {
    msg: 'the new configuration is refused; the old one stays in force',
    levels: ['error'],
    meaning: 'See OncegateConfigRefused.',
    fields: { mistakes: z.array(z.string()).describe('all mistakes of the file, without secrets') },
  },
  {
    msg: 'listening',
    levels: ['info'],
    meaning: 'The gateway serves.',
    fields: {
      port: z.int().describe('the port for merchants'),
      adminPort: z.int().describe('the admin port').optional(),
      mode: z.enum(['protect', 'observe']).describe('`idempotency.mode`').optional(),
      version: z.string().describe('the version of the gateway').optional(),
      node: z.string().describe('the version of Node').optional(),
      commit: z.string().describe('the commit of the build, or unknown').optional(),
    },
  },
  {
    msg: 'shutting down',
    levels: ['info'],
    meaning: 'A signal ends the gateway when its running requests have ended.',
    fields: { signal: z.enum(['SIGTERM', 'SIGINT']).describe('the signal that began the shutdown') },
  },
  {
    msg: 'somebody logged in to the console',
    levels: ['info'],
    meaning: 'With `admin.token`, or with one of `admin.tokens`.',
    fields: { by: z.string().describe('who'), client: z.string().describe('the address of the client') },
  },
  {
    msg: 'a login to the console was refused: wrong token',
    levels: ['warn'],
    meaning:
      'If it comes often, someone guesses tokens. A token that an address repeats has one line in five minutes.',
    fields: { client: z.string().describe('the address of the client') },
  },
  {
    msg: 'a request on the admin port was refused: wrong token',
    levels: ['warn'],
    meaning:
      'A Prometheus or a program has an old token; or, if it comes often, someone guesses tokens. A token that an address repeats has one line in five minutes.',
    fields: {
      path: z.enum(['/metrics', '/records']).describe('what was asked for'),
      client: z.string().describe('the address of the client'),
    },
  },
  {
    msg: 'a stored response was read in the console',
    levels: ['info'],
    meaning: 'Somebody saw what a merchant got. Its scope is whole here.',
    fields: {
      by: z.string().describe('who'),
      scope: z
        .string()
        .regex(/^[0-9a-f]{64}$/)
        .describe('the record’s scope'),
      client: z.string().describe('the address of the client'),
    },
  },
  {
    msg: 'a request on the admin port failed',
    levels: ['error'],
    meaning: 'A mistake of the gateway. Report it with this line.',
    fields: { err },
  },
  {
    msg: 'the handler pipes the response of another server: a proxy that stops when the merchant disconnects, or that answers for a request that it never sent, leaves keys in doubt; use forward()',
    levels: ['warn'],
    meaning: 'Only of the npm package.',
    fields: { operation },
  },
] as const satisfies readonly LogEvent[];

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
