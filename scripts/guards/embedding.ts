import type { Guard } from '../guards.ts';

const HANDLERS = { file: 'src/embedding/idempotency.ts', test: 'test/e2e/embedding/handlers.test.ts' };
const RECORDING = { file: 'src/embedding/recording.ts', test: 'test/e2e/embedding/handlers.test.ts' };
const FORWARD = { file: 'src/embedding/forward.ts', test: 'test/e2e/embedding/forward.test.ts' };
const on = (test: string) => `idempotency() on Express 5 > ${test}`;

/** The middleware in front of anyone's own handlers. */
export const embeddingGuards: readonly Guard[] = [
  {
    ...HANDLERS,
    without: 'a handler is called although its lease may have lapsed',
    text: 'if (!maySend())',
    replacement: 'if (maySend() === undefined)',
    named: on('does not call the handler when its lease may have lapsed'),
  },
  {
    ...HANDLERS,
    without:
      'a handler whose time is over may still send, although another request may execute the key by now',
    text: '() => !hasEnded && maySend()',
    replacement: '() => maySend()',
    test: FORWARD.test,
    named: 'forward() > sends nothing when a slow middleware before it has used up the time of the handler',
  },
  {
    ...HANDLERS,
    without: 'all merchants share their keys',
    text: "context.merchant = { code: code ?? '',",
    replacement: "context.merchant = { code: '',",
    named: on('refuses another request with the key, and keeps merchants apart'),
  },
  {
    ...HANDLERS,
    without: 'a body that a parser has read is not compared',
    text: 'context.body = found.bytes;',
    replacement: 'context.body = Buffer.alloc(0);',
    named: on('compares bodies, whether they were parsed before or not'),
  },
  {
    ...RECORDING,
    without: 'a handler that does not end in time counts as not executed',
    text: "this.#end({ kind: 'unknown', reason, timedOut: true });",
    replacement: "this.#end({ kind: 'not_sent', reason });",
    named: on('leaves the key in doubt when the handler does not end in time'),
  },
  {
    ...RECORDING,
    without: 'a response that the handler destroys counts as its whole response',
    text: "this.#end({ kind: 'unknown', reason: 'the handler destroyed its response', timedOut: false });",
    replacement: 'this.#endResponse();',
    named: on('leaves the key in doubt when the handler destroys its response'),
  },
  {
    ...RECORDING,
    without: 'when a merchant disconnects, the response of the handler is cut off, and the key is in doubt',
    text: "if (name !== 'close' && name !== 'error') return",
    replacement: 'return',
    named: on('goes on when the merchant disconnects'),
  },
  {
    ...RECORDING,
    without: 'a merchant who disconnects makes the body unreadable',
    text: 'this.#letGo = keepReadable(res.req, () => this.#held.destroy());',
    replacement: '',
    named: on('reads the body after the merchant has disconnected'),
  },
  {
    ...RECORDING,
    without: 'a handler that says that it did nothing is not believed',
    text: "if (this.#said !== 'unknown') this.#said = said;",
    replacement: '',
    named: on('frees the key with release(), and leaves it in doubt with unknown()'),
  },
  {
    ...RECORDING,
    without: 'release() frees a key after unknown()',
    text: "if (this.#said !== 'unknown') this.#said = said;",
    replacement: 'this.#said = said;',
    named: on('stays in doubt after unknown(), whatever the handler says then'),
  },
  {
    ...RECORDING,
    without: 'a handler can change its mind after its response',
    text: 'if (this.#isDone) throw new Error(',
    replacement: 'if (this.#isDone) void new Error(',
    named: on('frees the key with release(), and leaves it in doubt with unknown()'),
  },
  {
    ...FORWARD,
    without: 'forward() answers although it cannot know what became of the request',
    text: 'exchange ?? {',
    replacement: "exchange?.kind === 'complete' ? exchange : {",
    named:
      'forward() behind idempotency() on Express 5 > pays once when the backend executes and then resets',
  },
];
