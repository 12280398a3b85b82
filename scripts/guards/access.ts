import type { Guard } from './guard.ts';

const FORWARD = 'e2e/embedding/forward';
const HANDLERS = 'e2e/embedding/handlers';
const KEYS = 'src/keys/upstream-key-source.ts';
const HEADERS = 'src/backend/headers.ts';
const IDEMPOTENCY = 'src/middleware/idempotency.ts';
const RECORDING = 'src/middleware/recording.ts';

/** Which keys are valid, which paths need none, and who the client is. */
export const accessGuards: readonly Guard[] = [
  [
    'a page on another port of the host uses the console by its cookie alone',
    ['src/admin/console/sessions.ts', 'digestOf', "[cookie, secret].join(' ')", 'cookie || secret'],
    ['e2e/console/session', 'a request of another page > gets nothing by the cookie alone'],
  ],
  [
    'a WebSocket stays open when its key has left the key file',
    ['src/keys/open-connections.ts', 'constructor', 'keys.onChange(() => this.#check())', ''],
    ['unit/auth-open-connections', 'a session ends at once when the key file > no longer has its key'],
  ],
  [
    'a secret key keeps working although the backend names another merchant for it',
    [KEYS, '#probe', 'known.entry.merchantCode !== answer.merchantCode', 'false'],
    ['e2e/http/keys-of-the-backend', 'a secret key > never changes its merchant'],
  ],
  [
    'a key that was revoked before a reload works after it',
    ['src/keys/key-cache.ts', 'isCurrent', 'sentAtMs > this.#expiredAtMs', 'sentAtMs > 0'],
    ['unit/auth-key-cache', 'not after all answers were expired'],
  ],
  [
    'a public path opens an operation that it resembles',
    ['src/requests/public-paths.ts', 'identityOf', 'onPath.length > 0', 'false'],
    ['e2e/http/public-paths', 'a CORS preflight > that is none needs a secret key on a declared path'],
  ],
  [
    'a merchant’s key does not protect on a public path',
    ['src/gateway/public-requests.ts', 'forwardPublic', '|| expectsProtection(req, keyHeaders)', ''],
    ['e2e/http/public-paths', 'needs a valid secret key if it has credentials and an idempotency key'],
  ],
  [
    'anybody gets the gateway’s own credentials on a public path',
    ['src/gateway/forwarder.ts', 'backendHeaders', "auth.forward === 'keep' ?", 'true ?'],
    ['e2e/http/public-paths', 'does not get the gateway’s credentials under forward: replace'],
  ],
  [
    'a merchant tells the backend that it is another one',
    [HEADERS, 'forwardedHeaders', 'SET_BY_GATEWAY.has(name)', 'false'],
    ['unit/upstream-headers', 'do not include a merchant code or a request id of the merchant'],
  ],
  [
    'a client tells the backend another address although it is no trusted proxy',
    ['src/requests/client-address.ts', 'findClient', '!isTrusted?.(peer, 0)', '!isTrusted'],
    ['e2e/http/headers', 'behind trusted proxies > somebody else is not believed'],
  ],
];

/** The middleware in front of anyone's own handlers. */
export const embeddingGuards: readonly Guard[] = [
  [
    'a handler is called although its lease may have lapsed',
    [IDEMPOTENCY, '#run', '!maySend()', 'false'],
    [HANDLERS, 'does not call the handler when its lease may have lapsed'],
  ],
  [
    'a handler sends although its merchant was told something else',
    [IDEMPOTENCY, '#run', '!isTold && maySend()', 'maySend()'],
    [FORWARD, 'sends nothing when a slow middleware before it has used up the time of the handler'],
  ],
  [
    'a handler that takes long gives up its key, which can be released while it still pays',
    [RECORDING, 'constructor', 'options.onTimeLimit()', 'this.#abandon()'],
    [HANDLERS, 'answers 504 when the handler takes long, and stores its response when it ends'],
  ],
  [
    'a key is forgotten after a day although its merchant was told that the outcome is unknown',
    ['src/idempotency/execution.ts', '#completing', 'exchange.isLate === true', 'false'],
    [HANDLERS, 'answers 504 when the handler takes long, and stores its response when it ends'],
  ],
  [
    'the result of a handler that ended after all is lost',
    ['src/idempotency/execution.ts', 'run', 'exchange.late?.then', 'exchange.late?.catch'],
    [HANDLERS, 'leaves the key in doubt when the handler never ends, and a late end heals it'],
  ],
  [
    'release() frees a key after unknown()',
    [RECORDING, 'say', "if (this.#said !== 'unknown')", ''],
    [HANDLERS, 'leaves it in doubt with unknown(), whatever is said after that'],
  ],
  [
    'forward() answers although it cannot know what became of the request',
    ['src/middleware/forward.ts', 'handle', 'exchange ??', "{ ...exchange, kind: 'not_sent' } ??"],
    [FORWARD, 'forward() behind idempotency() > pays once when the backend does execute-then-reset'],
  ],
  [
    'a body that a parser has read is not compared',
    [IDEMPOTENCY, '#takeBody', 'context.body = found.bytes', 'context.body = Buffer.alloc(0)'],
    [HANDLERS, 'compares bodies, whether they were parsed before or not'],
  ],
];
