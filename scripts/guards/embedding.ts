import type { Guard } from '../guards.ts';

const HANDLERS = { file: 'src/middleware/idempotency.ts', test: 'test/e2e/embedding/handlers.test.ts' };
const RECORDING = { file: 'src/middleware/recording.ts', test: 'test/e2e/embedding/handlers.test.ts' };
const BODY = { file: 'src/middleware/body.ts', test: 'test/e2e/embedding/handlers.test.ts' };
const FORWARD = { file: 'src/middleware/forward.ts', test: 'test/e2e/embedding/forward.test.ts' };

/** The middleware in front of anyone's own handlers. */
export const embeddingGuards: readonly Guard[] = [
  {
    ...HANDLERS,
    without: 'a handler is called although its lease may have lapsed',
    text: 'if (!maySend())',
    replacement: 'if (maySend() === undefined)',
    named: 'idempotency() > does not call the handler when its lease may have lapsed',
  },
  {
    ...HANDLERS,
    without:
      'a handler whose time is over may still send, although another request may execute the key by now',
    text: '() => !isTold && maySend()',
    replacement: '() => maySend()',
    test: FORWARD.test,
    named: 'forward() > sends nothing when a slow middleware before it has used up the time of the handler',
  },
  {
    ...RECORDING,
    without: 'a handler that takes long gives up its key, which can be released while it still pays',
    text: 'options.onTimeLimit();',
    replacement: "this.#end({ kind: 'unknown', reason: 'too late', timedOut: true });",
    named: 'idempotency() > answers 504 when the handler takes long, and stores its response when it ends',
  },
  {
    file: 'src/idempotency/execution.ts',
    test: HANDLERS.test,
    without: 'the result of a handler that ended after all is lost',
    text: 'void exchange.late?.then(',
    replacement: 'void Promise.withResolvers<Exchange>().promise.then(',
    named: 'idempotency() > leaves the key in doubt when the handler never ends, and a late end heals it',
  },
  {
    file: 'src/middleware/handler.ts',
    test: 'test/e2e/embedding/package.test.ts',
    without: 'a lookup releases the key of a handler that may not have been called yet',
    text: 'if (times.releaseAfterMs < ms)',
    replacement: 'if (times.releaseAfterMs < 0)',
    named: 'createGateway() > explains mistakes',
  },
  {
    ...HANDLERS,
    without: 'all merchants share their keys',
    text: "context.merchant = { code: code ?? '',",
    replacement: "context.merchant = { code: '',",
    named: 'idempotency() > refuses another request with the key, and keeps merchants apart',
  },
  {
    ...BODY,
    without: 'all forms and maps that a parser has made look the same',
    text: 'shown !== this[name] || !isPlain(shown)',
    replacement: 'shown !== this[name]',
    named:
      'idempotency() with the parsers, errors and responses of Express 5 > compares bodies, whether they were parsed before or not',
  },
  {
    ...BODY,
    without: 'a body that a parser has decompressed is sent as if it were compressed',
    text: 'const isRaw = !hasContentCoding(req);',
    replacement: 'const isRaw = true;',
    test: FORWARD.test,
    named: 'forward() > refuses a body that a parser has read or decompressed',
  },
  {
    ...HANDLERS,
    without: 'a body that a parser has read is not compared',
    text: 'context.body = found.bytes;',
    replacement: 'context.body = Buffer.alloc(0);',
    named:
      'idempotency() with the parsers, errors and responses of Express 5 > compares bodies, whether they were parsed before or not',
  },
  {
    ...RECORDING,
    without: 'a handler that does not end in time counts as not executed',
    text: "this.#end({ kind: 'unknown', reason, timedOut: true, late });",
    replacement: "void late; this.#end({ kind: 'not_sent', reason });",
    named: 'idempotency() > leaves the key in doubt when the handler never ends, and a late end heals it',
  },
  {
    ...RECORDING,
    without: 'a response that the handler destroys counts as its whole response',
    text: "this.#end({ kind: 'unknown', reason: 'the handler destroyed its response', timedOut: false });",
    replacement: 'this.#endResponse();',
    named:
      'idempotency() with the parsers, errors and responses of Express 5 > leaves the key in doubt when the handler destroys its response',
  },
  {
    ...RECORDING,
    without: 'when a merchant disconnects, the response of the handler is cut off, and the key is in doubt',
    text: 'if (!isHeld) return',
    replacement: 'if (!isHeld || !this.#isAnswered) return',
    named: 'idempotency() > goes on when the merchant disconnects',
  },
  {
    ...RECORDING,
    without: 'a merchant who disconnects makes the body unreadable',
    text: 'this.#letGo = keepReadable(res.req, () => this.#held.destroy());',
    replacement: '',
    named:
      'idempotency() with the parsers, errors and responses of Express 5 > reads the body after the merchant has disconnected',
  },
  {
    ...RECORDING,
    without: 'a handler that says that it did nothing is not believed',
    text: "if (this.#said !== 'unknown') this.#said = said;",
    replacement: '',
    named: 'idempotency() > frees the key with release(), and leaves it in doubt with unknown()',
  },
  {
    ...RECORDING,
    without: 'release() frees a key after unknown()',
    text: "if (this.#said !== 'unknown') this.#said = said;",
    replacement: 'this.#said = said;',
    named:
      'idempotency() > frees the key with release(), and leaves it in doubt with unknown(), whatever is said after that',
  },
  {
    ...RECORDING,
    without: 'a handler can change its mind after its response',
    text: 'if (this.#isDone) throw new Error(',
    replacement: 'if (this.#isDone) void new Error(',
    named: 'idempotency() > frees the key with release(), and leaves it in doubt with unknown()',
  },
  {
    ...FORWARD,
    without: 'forward() answers although it cannot know what became of the request',
    text: 'exchange ?? {',
    replacement: "exchange?.kind === 'complete' ? exchange : {",
    named: 'forward() behind idempotency() > pays once when the backend does execute-then-reset',
  },
];
