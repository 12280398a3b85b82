import type { Guard } from '../guards.ts';

const EXECUTOR = 'src/upstream/executor.ts';
const MIDDLEWARE = 'src/idempotency/http/middleware.ts';
const FAILURES = 'test/e2e/http/upstream-failures.test.ts';
const SCHEMA = {
  file: 'src/config/schema.ts',
  test: 'test/unit/config-contradictions.test.ts',
};

/** What is sent to the backend, and for whom; the configuration; the shutdown. */
export const gatewayGuards: readonly Guard[] = [
  {
    file: EXECUTOR,
    without: 'a request is sent again after a reset',
    text: 'const ended = (result: UpstreamResult) =>\n        resolve(',
    replacement: `const ended = (result: UpstreamResult) =>
        result.kind === 'unknown' && !('again' in request)
          ? this.send(Object.assign(request, { again: true })).then(resolve)
          : resolve(`,
    test: FAILURES,
    named: 'executed under a key > sent on a connection that closes at this moment',
  },
  {
    file: EXECUTOR,
    without: 'a request that was sent is reported as not sent',
    text: 'this.#sent = true;',
    replacement: '',
    test: FAILURES,
    named: 'executed under a key > sent, then execute-then-reset',
  },
  {
    file: EXECUTOR,
    without: 'a request that was reported as not sent is sent after all',
    text: `    if (this.#ended) {
      controller.abort(new DeadlinePassed());`,
    replacement: `    if (this.#status < 0) {
      controller.abort(new DeadlinePassed());`,
    test: 'test/unit/executor-may-send.test.ts',
    named: 'whose time is over before it has a connection is never sent',
  },
  {
    file: EXECUTOR,
    without: 'a truncated body is stored as the result',
    text: "else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });",
    replacement: `else if (this.#status > 0) this.onResponseEnd();
    else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });`,
    test: 'test/e2e/idempotency/outcome-in-doubt.test.ts',
    named: 'on sqlite > an answer that breaks off > (truncate) leaves the key in doubt',
  },
  {
    file: MIDDLEWARE,
    without: 'the scope depends on the secret key',
    text: 'this.scope = scopeOf(merchant.code, key);',
    replacement: 'this.scope = scopeOf(String(req.headers.authorization), key);',
    test: 'test/e2e/idempotency/scope.test.ts',
    named: 'on sqlite, a key > outlives the secret key',
  },
  {
    file: MIDDLEWARE,
    without: 'a merchant who hangs up ends the execution',
    text: 'return this.#options.send(this.#req, maySend);',
    replacement: `return Promise.race([
      this.#options.send(this.#req, maySend),
      new Promise<never>((_, reject) => this.gone.addEventListener('abort', () => reject(new Error('gone')))),
    ]);`,
    test: 'test/e2e/idempotency/hang-up-late.test.ts',
    named: 'on sqlite, a merchant who hangs up > is logged once',
  },
  {
    file: 'src/gateway/gateway.ts',
    without: 'a gateway ends before the store has the last responses',
    text: 'await engine.close(completeMs);',
    replacement: 'await engine.close(0);',
    test: 'test/regression/told-result-was-given-up.test.ts',
    named: 'it stays until the store has them, 1 workers',
  },
  {
    ...SCHEMA,
    without: 'a connection may take longer than a lease',
    text: 'if (connectTimeoutMs >= leaseMs)',
    replacement: 'if (connectTimeoutMs < 0)',
    named: 'a time to connect that outlasts the lease',
  },
  {
    ...SCHEMA,
    without: 'an execution may take longer than its result is kept',
    text: 'if (retentionMs <= executionMs) {',
    replacement: 'if (executionMs < 0) {',
    named: 'a retention that one execution may outlast',
  },
  {
    ...SCHEMA,
    without: 'a key in doubt may be kept for a shorter time than a result',
    text: 'if (inDoubtRetentionMs < retentionMs)',
    replacement: 'if (inDoubtRetentionMs < 0)',
    named: 'a key in doubt that expires before a completed one',
  },
];
