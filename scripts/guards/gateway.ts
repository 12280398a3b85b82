import type { Guard } from './guard.ts';

const IDENTITY = 'e2e/process/store-identity';
const EXECUTOR = 'src/backend/executor.ts';
const PROTECT = 'src/idempotency/protect.ts';
const WATCH = 'src/ledger/store-watch.ts';

/** A store that was emptied or restored takes every key for a new one. */
export const storeWatchGuards: readonly Guard[] = [
  [
    'starts and restarts are sent to a store that is refused',
    ['src/ledger/measured.ts', 'timed', 'why === undefined', 'true'],
    [IDENTITY, 'starts and restarts are not sent to a store that is refused, whoever asks'],
  ],
  [
    'starts go out on a new connection before it is known that the store is the same',
    [WATCH, 'refusalOf', 'this.#compared.has(store.connectionOf(recordId))', 'true'],
    [IDENTITY, 'a Redis that comes back empty gets no start'],
  ],
  [
    'a refusal is forgotten at the next start of the gateway',
    [WATCH, '#readFile', 'this.#changed = noted.changed', ''],
    [IDENTITY, 'a restored SQLite file is noticed by check, by the next start and on /readyz'],
  ],
];

/** What is sent to the backend, under which key, and what its answer is worth. */
export const backendGuards: readonly Guard[] = [
  [
    'a request that was sent is reported as not sent',
    [EXECUTOR, 'onRequestStart', 'this.#sent = true', ''],
    ['e2e/http/upstream-failures', 'gets a request and resets the connection: 502 outcome_unknown'],
  ],
  [
    'a request that was reported as not sent is sent after all',
    [EXECUTOR, 'onRequestStart', 'this.#ended', 'false'],
    ['integration/executor-may-send', 'whose deadline passes before it has a connection is never sent'],
  ],
  [
    'a body that was cut off is stored as the result',
    [EXECUTOR, 'onResponseError', "this.#end({ kind: 'unknown'", "this.onResponseEnd({ kind: 'unknown'"],
    ['e2e/idempotency/outcomes', 'an answer leaves the key in doubt if > it is cut off: truncate'],
  ],
  [
    'a response without a length is complete when its connection ends',
    [EXECUTOR, 'onResponseEnd', 'isWholeJson(this.#headers, body)', 'true'],
    ['integration/executor-framing', 'is complete only if it is whole JSON, and its connection ended well'],
  ],
  [
    'a merchant with a new secret key executes its keys again',
    [PROTECT, 'constructor', 'merchant.code, key', 'String(req.headers.authorization), key'],
    ['e2e/idempotency/keys', 'a key outlives the secret key'],
  ],
  [
    'a gateway and the application behind it share a record',
    ['src/ledger/record-id.ts', '', '[layer, merchantCode,', '[merchantCode,'],
    ['e2e/embedding/layers', 'a gateway and the application behind it use one store'],
  ],
  [
    'a key in doubt is sent again with another key, which the backend may read',
    [PROTECT, 'constructor', '&& context.ignoredKeyHeaders', '&& false'],
    ['e2e/idempotency/keys', 'a key in doubt is not sent again with another key beside it'],
  ],
];
