import type { Guard } from '../guards.ts';

const EXECUTOR = 'src/upstream/executor.ts';
const HEAD = 'src/gateway/admission.ts';
const HEAD_TEST = 'test/e2e/http/head.test.ts';
const OVERSIZE = 'src/upstream/oversize.ts';
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
    text: '        resolve(result);\n        ended',
    replacement: `if (result.kind === 'unknown' && !('again' in request))
          void this.send(Object.assign(request, { again: true })).then(resolve);
        else resolve(result);
        ended`,
    test: FAILURES,
    named: 'executed under a key > sent on a connection that the backend resets at this moment',
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
    test: 'test/integration/executor-may-send.test.ts',
    named: 'whose deadline passes before it has a connection is never sent',
  },
  {
    file: EXECUTOR,
    without: 'a truncated body is stored as the result',
    text: "else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });",
    replacement: `else if (this.#status > 0) this.onResponseEnd();
    else this.#end({ kind: 'unknown', reason, timedOut: error instanceof DeadlinePassed });`,
    test: 'test/e2e/idempotency/outcome-in-doubt.test.ts',
    named: 'on sqlite > a truncated answer > (truncate) leaves the key in doubt',
  },
  {
    file: OVERSIZE,
    without: 'merchants who do not read an oversize response take all slots',
    text: 'if (this.#open.size <= this.#max) return;',
    replacement: 'if (this.#open.size > 0) return;',
    test: 'test/e2e/idempotency/oversize-streams.test.ts',
    named: 'merchants who do not read their oversize responses > leave half of the slots to others',
  },
  {
    file: OVERSIZE,
    without: 'a merchant who reads is cut for those who do not',
    text: 'const [longest = body] = this.#stalled;',
    replacement: 'const longest = body;',
    test: 'test/e2e/idempotency/oversize-streams.test.ts',
    named: 'merchants who do not read their oversize responses > are cut before a merchant who reads',
  },
  {
    file: EXECUTOR,
    without: 'a response that is one stream too many leaves its key in doubt',
    text: 'this.#oversize = oversize;',
    replacement: 'this.#streams.begin(oversize);\n    this.#oversize = oversize;',
    test: 'test/e2e/idempotency/oversize-streams.test.ts',
    named: 'an oversize response above the limit is cut if all merchants read, and its key is completed',
  },
  {
    file: OVERSIZE,
    without: 'a backend that falls silent keeps its connection and its slot',
    text: 'if (!this.#controller.paused) this.destroy(',
    replacement: 'if (silenceMs < 0) this.destroy(',
    test: 'test/integration/executor-oversize.test.ts',
    named: 'an oversize response > of a backend that stops sending is cut',
  },
  {
    file: 'src/gateway/open-responses.ts',
    without: 'a merchant who does not read a streamed answer keeps its connection to the backend',
    text: 'if (!res.writableNeedDrain) return undefined;',
    replacement: 'if (!res.writableEnded) return undefined;',
    test: 'test/e2e/http/streams.test.ts',
    named: 'a merchant of a response that is passed through > who does not read it loses the connection',
  },
  {
    file: 'src/upstream/passthrough.ts',
    without: 'streams to the backend have no limit',
    text: 'if (open >= upstream.maxStreams) {',
    replacement: 'if (open < 0) {',
    test: 'test/e2e/http/streams.test.ts',
    named:
      'with maxStreams: 2, a third stream is refused and not sent > until one of two requests is answered',
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
    text: 'return this.#options.send(this.#req, maySend, this.#res, this.#next);',
    replacement: `return Promise.race([
      this.#options.send(this.#req, maySend, this.#res, this.#next),
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
    test: 'test/regression/acknowledged-result-was-given-up.test.ts',
    named: 'the gateway keeps running until its results are stored, 1 workers',
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
  {
    file: HEAD,
    without: 'a length among hidden header lines makes a body the next request',
    text: 'if (rawHeaders.length > 2 * MAX_HEADER_LINES)',
    replacement: 'if (rawHeaders.length < 0)',
    test: HEAD_TEST,
    named: 'header lines > 201 are answered 431, wherever a length is among them',
  },
  {
    file: HEAD,
    without: 'a version of HTTP without chunks is read with chunks',
    text: "if (httpVersion !== '1.1' && httpVersion !== '1.0')",
    replacement: "if (httpVersion === '')",
    test: HEAD_TEST,
    named: 'a version of HTTP that is not supported > 0.9 is answered 505',
  },
  {
    file: HEAD,
    without: 'a request that is malformed is followed by another',
    text: "if (refusal?.code === 'invalid_request') res.shouldKeepAlive = false;",
    replacement: '',
    test: HEAD_TEST,
    named: 'Host > is required',
  },
  {
    file: 'src/main.ts',
    without: 'an old Node serves, and drops header lines',
    text: 'if (major < OLDEST_NODE.major || (major === OLDEST_NODE.major && minor < OLDEST_NODE.minor)) {',
    replacement: 'if (major < 0) {',
    test: 'test/e2e/process/old-node.test.ts',
    named: 'an old Node > 24.17.9 is refused in one sentence',
  },
  {
    without:
      'over TLS, Node’s paused parser loses bytes of a pipelined request and reads on within another one',
    file: 'src/gateway/tls-server.ts',
    text: "    socket.on('data', () => {});",
    replacement: '',
    test: 'test/e2e/tls/listener.test.ts',
    named: 'pipelines more than it reads',
  },
  {
    without: 'a client that leaves within a TLS handshake keeps its place until the handshake times out',
    file: 'src/gateway/tls-server.ts',
    text: '      handshakeTimeout: handshakeTimeoutMs,',
    replacement: '      handshakeTimeout: handshakeTimeoutMs,\n      ...{ allowHalfOpen: true },',
    test: 'test/e2e/tls/listener.test.ts',
    named: 'that fails is counted by its reason',
  },
];
