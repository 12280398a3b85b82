import { RECORD_ID_DIGITS } from '../lib/brands.ts';
import { CATALOGUE } from './catalogue.ts';
import { OUTCOMES, WOULD } from './label-values.ts';
import { at, field, int, ms, oneOf, optional, responseDigest, text, texts } from './log-event.ts';

// Fields that several events have. None has an idempotency key, a secret, a header or a body.
const merchant = text('the merchant code');
const operation = text(
  'a name of the configuration, `other` or `undeclared`; `none`: refused before it was identified',
);
const recordId = text('the first 16 digits of the record’s id', 16);
const requestId = text('the request id: that of the merchant’s `X-Request-Id` if it is well-formed');
const traceId = optional(text('the trace that the request belongs to, if it has one', 32));
const client = text('the address of the client');
const by = text('who');
const reason = text('why, in words');
const err = field<unknown>('error')('the error: `type`, `message`, `stack`, and `code` if it has one');
const certificate = oneOf(
  CATALOGUE.certificateReloads.labels.certificate,
  'the section that names its files',
);
const keyed = { recordId, merchant, operation, requestId: optional(requestId), traceId };

const [error, warn, info, debug] = [at('error'), at('warn'), at('info'), at('debug')];

/**
 * Everything that the gateway logs, by the name under which it is told to `emit` (emit.ts), with the metrics that count it. The
 * message never changes with what happened: the fields say that. `npm run generate` makes the table of the log in docs/operations.md from it.
 */
export const EVENTS = {
  // Requests.
  request: info('request', 'A request has ended.', {
    requestId,
    traceId,
    client: optional(client),
    merchant: optional(merchant),
    keyId: optional(text('the id of the secret key, not the secret')),
    operation,
    method: optional(text('the method')),
    path: text('the declared path or pattern; of other paths, plain words only'),
    status: optional(int('the status of the answer; absent if none was sent')),
    outcome: oneOf(OUTCOMES, 'how it ended: executed, replayed, …, or the code of the gateway’s own answer'),
    would: optional(oneOf<string>(WOULD, 'under `mode: observe`, what `mode: protect` would have done')),
    recordId: optional(recordId),
    ignoredKeyHeaders: optional(
      text(
        'headers that hold another key, which was not used: an earlier one of `idempotency.headers` decides',
      ),
    ),
    durationMs: ms('from the head of the request to the end of the answer'),
    upstreamMs: ms('time of the backend'),
    waitMs: ms('time spent waiting for another request with the same key'),
    merchantGone: optional(field<true>('true')('the merchant disconnected before the answer was complete')),
  }),
  malformed_request: info(
    'malformed request',
    'Bytes that are no valid HTTP request were refused before a request began.',
    { outcome: oneOf(OUTCOMES, 'the code of the answer') },
    'requests',
    { operation: 'none' },
  ),
  request_failed: error(
    'a request failed within the gateway',
    'A mistake of the gateway: the merchant got 500 `internal_error`. Report it with this line.',
    { requestId, traceId, err },
  ),

  // Requests with an idempotency key.
  in_doubt: warn(
    'the outcome of an execution is unknown',
    'The key is in doubt. See OncegateInDoubt.',
    { ...keyed, reason },
    'inDoubt',
  ),
  sent_again: warn(
    'a request whose outcome is unknown is sent again',
    'Under `inDoubt: retry`, the backend gets the request once more.',
    keyed,
    'sentAgain',
  ),
  lease_lost: warn(
    'a lease lapsed while its owner was alive',
    'The gateway was paused, or the store is slow.',
    keyed,
    'leaseLost',
  ),
  stale: warn(
    'a write was refused: another execution owns the record',
    'The gateway was paused for longer than a lease, and the key was resolved or executed meanwhile.',
    { ...keyed, write: text('the command to the store') },
    'stale',
  ),
  late_answer: error(
    'a late response was not stored: the key has another result',
    'The backend answered after the key had been resolved. If the two results differ, compare with its books.',
    {
      ...keyed,
      late: responseDigest('the response: state, status, length and hash of its body'),
      stored: responseDigest('the same of what the store holds'),
    },
  ),
  complete_late: error(
    'the response was sent before it was stored',
    'The store did not take it in time; the gateway repeats the write. See OncegateCompleteLate.',
    { ...keyed, reason },
    'completeLate',
  ),
  complete_given_up: error(
    'the response was sent and never stored, and this process ends: the key may be in doubt',
    'The store did not answer until the end of the shutdown. Resolve the key as completed.',
    keyed,
  ),
  writes_pending: warn(
    'waiting for the store to take the last writes before this process ends',
    'Bring the store back, and do not kill the process.',
    {
      writes: int('how many writes the store has not acknowledged'),
      completeMs: ms('how long it waits at most'),
    },
  ),
  undecided: {
    ...warn(
      'a lookup did not decide a key in doubt',
      'The backend’s answer fits none of the lookup’s statuses. Only the first one of a key is a warning.',
      {
        ...keyed,
        said: text('what the backend answered'),
        times: int('how many lookups of this key did not decide'),
      },
    ),
    laterLevel: 'debug' as const,
  },
  resolved: info(
    'a key in doubt was resolved',
    'By an operator on the admin port, or by a lookup. The audit trail has it too.',
    {
      ...keyed,
      by,
      reason,
      from: oneOf(['executing', 'in_doubt'], 'the state before'),
      to: oneOf(['completed', 'released'], 'the state after'),
    },
  ),

  // The store.
  unreadable: error(
    'a record cannot be read',
    'Its merchant gets 503 and nothing is executed. See `oncegate_unreadable_records_total`.',
    {
      recordId,
      reason: oneOf(CATALOGUE.unreadable.labels.reason, 'which kind of damage'),
      why: text('what is wrong with it'),
    },
    'unreadable',
  ),
  store_lost: error(
    'the store does not answer',
    'Requests with a key get 503, replays too, and nothing is sent for them; other requests are served. Bring it back, and do not restart the gateway. One line for each outage. See OncegateStoreFailing.',
    { reason },
  ),
  store_refuses: error(
    'the store refuses writes',
    'Its disk or its memory is full, or a replica or a master of a cluster is away, or it cannot write for another reason: new keys get 503, and replays are answered where a read needs no replica. One line for each outage; one that did not answer before has ten seconds to take writes again. See OncegateStoreRefusesWrites.',
    { reason },
  ),
  store_works: warn(
    'the store works again',
    'It answers and takes writes, and nothing has failed for a second. One line for each outage.',
    { lastedMs: ms('how long it did not, from when the first command was sent that failed') },
  ),
  clock_stepped: error(
    'the clock of the store’s host was stepped: records expire early or late',
    'Slew that clock, never step it.',
    { stepMs: field<number>('number')('by how much; positive: forwards') },
    'clockSteps',
  ),
  writer_replaced: error(
    'the store’s writer thread died and was replaced',
    'The gateway continues. If it happens again, report it.',
    { err },
  ),
  store_changed: error(
    'the store has changed',
    'It is another one, was emptied, or was restored: keys that it has forgotten can be paid again. No new key is started until an operator accepts it.',
    { warning: text('what was noticed') },
  ),
  store_accepted: warn(
    'the store was accepted',
    'An operator has accepted a store that forgot keys (`oncegate store accept`). The gateway starts new keys again.',
    { at: text('when, as ISO 8601'), by, reason, what: text('what was accepted') },
  ),
  attention: warn(
    'something needs attention',
    'A warning about the configuration, the store, keys or certificates, at the start, after a reload, or when it begins.',
    { warning: text('one line; the word before the colon says what it is about') },
  ),

  // Secret keys.
  keys_unchecked: warn(
    'the backend cannot check a secret key',
    'With `auth.keys.source: upstream`: the request got 503. See [Keys of the backend](#keys-of-the-backend).',
    { reason },
  ),
  merchant_changed: error(
    'the backend names another merchant for a secret key than before: the key is refused',
    'Ask the backend’s owners. See OncegateMerchantChanged.',
    { from: text('the merchant code before'), to: text('the merchant code now') },
    'keyProbes',
    { result: 'merchant_changed' },
  ),
  keys_reloaded: info(
    'the secret keys were reloaded',
    'Changed keys are in force.',
    { keys: int('how many there are') },
    'keyReloads',
    { result: 'ok' },
  ),
  merchants_removed: warn(
    'merchants have no secret key any more',
    'A changed key file lacks all keys of these merchants that were in force: they get 401 for every request, retries included. See OncegateMerchantsRemoved.',
    { removed: int('how many'), merchants: texts('their codes, at most 20') },
    'keyReloads',
    { result: 'merchants_removed' },
  ),
  keys_refused: error(
    'the secret keys cannot be reloaded; the old ones stay in force',
    'See OncegateKeyFileRefused.',
    { reason },
    'keyReloads',
    { result: 'refused' },
  ),

  // The gateway's other parts.
  doubts_uncounted: warn(
    'the keys in doubt cannot be counted: the metrics show those of the last count',
    'The store does not answer, or its Redis user may not count. Logged once until a count succeeds.',
    { reason },
  ),
  spans_lost: warn(
    'spans were lost: the collector did not take them',
    'Traces lack spans; requests are not affected. At most once a minute, and at the end. See `oncegate_spans_total`.',
    { spans: int('how many spans were lost since the last such line'), reason },
  ),
  limits_unshared: warn(
    'the limits of merchants are not shared: Redis does not answer',
    'Each gateway counts the requests of merchants by itself meanwhile.',
    { reason },
  ),
  limits_shared: info('the limits of merchants are shared again', 'Redis answers again.', {}),
  certificate_reloaded: info(
    'a certificate was reloaded',
    'New connections use it.',
    { certificate },
    'certificateReloads',
    { result: 'ok' },
  ),
  certificate_refused: error(
    'a new certificate is refused; the old one stays in use',
    'See [Certificates](#certificates).',
    { certificate, reason },
    'certificateReloads',
    { result: 'refused' },
  ),
  // Everyone can make a handshake fail, so it is a line only at this level.
  handshake_failed: debug(
    'a TLS handshake failed',
    'A client disconnected, was too slow, or was refused.',
    { reason: oneOf(CATALOGUE.handshakesFailed.labels.reason, 'who gave up'), code: text('the error code') },
    'handshakesFailed',
  ),
  config_reloaded: info(
    'the configuration was reloaded',
    'The changed options are in force.',
    { changed: texts('the sections that changed') },
    'configReloads',
  ),
  config_needs_restart: warn(
    'the changed configuration needs a restart',
    'These options keep their old values until the gateway is restarted.',
    { options: texts('their paths') },
  ),
  config_refused: error(
    'the new configuration is refused; the old one stays in force',
    'See OncegateConfigRefused.',
    { mistakes: texts('all mistakes of the file, without secrets') },
    'configReloads',
    { result: 'refused' },
  ),
  listening: info('listening', 'The gateway serves.', {
    port: int('the port for merchants'),
    adminPort: optional(int('the admin port')),
    mode: optional(oneOf(['protect', 'observe'], '`idempotency.mode`')),
    version: optional(text('the version of the gateway')),
    node: optional(text('the version of Node')),
    commit: optional(text('the commit of the build, or unknown')),
  }),
  shutting_down: info('shutting down', 'A signal ends the gateway when its running requests have ended.', {
    signal: oneOf(['SIGTERM', 'SIGINT'], 'the signal that began the shutdown'),
  }),
  handler_pipes: warn(
    'the handler pipes the response of another server: a proxy that stops when the merchant disconnects, or that answers for a request that it never sent, leaves keys in doubt; use forward()',
    'Only of the npm package.',
    { operation },
  ),

  not_committed: warn(
    'the handler answered with success, and has committed no transaction: the merchant got 503',
    'Only of the npm package, with `transactional`. The handler did not call `req.idempotency.transaction`, or has caught its error.',
    { operation },
  ),

  // The admin port.
  logged_in: info('somebody logged in to the console', 'With `admin.token`, or with one of `admin.tokens`.', {
    by,
    client,
  }),
  wrong_login: warn(
    'a login to the console was refused: wrong token',
    'If it comes often, someone guesses tokens. A token that an address repeats has one line in five minutes.',
    { client },
  ),
  wrong_token: warn(
    'a request on the admin port was refused: wrong token',
    'A Prometheus or a program has an old token; or, if it comes often, someone guesses tokens. A token that an address repeats has one line in five minutes.',
    { path: oneOf(['/metrics', '/records'], 'what was asked for'), client },
  ),
  body_read: info(
    'a stored response was read in the console',
    'Somebody saw what a merchant got. Its record id is whole here.',
    { by, recordId: text('the record’s id', RECORD_ID_DIGITS), client },
  ),
  admin_failed: error(
    'a request on the admin port failed',
    'A mistake of the gateway. Report it with this line.',
    { err },
  ),
};
