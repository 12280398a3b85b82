import { Validator } from '@seriousme/openapi-schema-validator';
import { afterAll, describe, expect, it } from 'vitest';
import { systemClock } from '../../../src/lib/clock.ts';
import { problem } from '../../../src/lib/problem.ts';
import { type ProblemCode, problemCodes } from '../../../src/lib/problem-table.ts';
import { send, type TestRequest, withdraw } from '../../support/client.ts';
import { type MoreConfig, temporaryFolder, testConfig } from '../../support/config.ts';
import { freePort } from '../../support/free-port.ts';
import { openKeyBackend } from '../../support/key-backend.ts';
import { metric, Scrape } from '../../support/metrics.ts';
import { payoutBody } from '../../support/payout.ts';
import { expectProblem, retryOf } from '../../support/problem.ts';
import { answersOn, rawConnection, rawExchange } from '../../support/raw.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openGateway, openSandbox, type TestGateway } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { complaintsAbout, openapiDocument, problemExamples, responsesOf, undocumented } from './document.ts';

const ENDPOINTS = {
  balance: { method: 'GET', path: '/v2/get_balance' },
  payments: { method: 'POST', path: '/v1/index.php' },
};
type Endpoint = keyof typeof ENDPOINTS;

type Answer = Awaited<ReturnType<typeof send>> | Awaited<ReturnType<typeof rawExchange>>[number];

const ALPHA = 'Bearer sk_sandbox_alpha';
const REALM = 'Bearer realm="oncegate"';
const CHARLIE = { Authorization: 'Bearer sk_sandbox_charlie' };
const RESTRICTED = { Authorization: 'Bearer sk_test_balance_only' };
const OVERRIDE = { 'X-HTTP-Method-Override': 'PUT' };
const MAX_BODY_BYTES = 4096;
const MAX_STORED_BYTES = 1024;

const sandbox = await openSandbox();
const opened: TestGateway[] = [];

async function open(
  more: MoreConfig = {},
  { url = sandbox.url, clock = systemClock } = {},
): Promise<TestGateway> {
  const gateway = await openGateway(testConfig(temporaryFolder(), url, more), clock);
  opened.push(gateway);
  return gateway;
}

const main = await open({
  limits: {
    bodyBytes: MAX_BODY_BYTES,
    perMerchant: { merchants: { 'M-CHARLIE': { requests: 1, windowMs: 3_600_000 } } },
  },
  idempotency: { maxStoredBytes: MAX_STORED_BYTES },
});
// It may send one request an hour.
await ask('balance', main, { headers: CHARLIE });
/** Waits for no merchant. Only for the answer that says so: a whole request can be late on a loaded machine. */
const impatient = await open({ limits: { bodyTimeoutMs: 200, headerTimeoutMs: 400 } });
/** Refuses undeclared requests, payouts without a key, and a second request while one is in flight. */
const strict = await open({
  limits: { inFlight: 1 },
  idempotency: { undeclared: 'refuse' },
  operations: [
    { name: 'balance', match: ENDPOINTS.balance },
    {
      name: 'withdraw',
      match: { ...ENDPOINTS.payments, where: { action: 'withdraw' } },
      idempotency: { key: 'required' },
    },
  ],
});
afterAll(() => Promise.all(opened.map((gateway) => gateway.shutdown())));

let used = 0;
const newKey = () => `key-${++used}`;

/** A well-formed request to the endpoint, to a payout with a new key; `more` changes it. */
function ask(
  endpoint: Endpoint,
  { url }: TestGateway,
  { headers, ...more }: TestRequest = {},
): Promise<Answer> {
  const isPayout = endpoint === 'payments';
  return send(url, {
    ...ENDPOINTS[endpoint],
    headers: {
      Authorization: ALPHA,
      ...(isPayout && { 'Content-Type': 'application/json', 'x-service-idempotency': newKey() }),
      ...headers,
    },
    ...(isPayout && { body: JSON.stringify(payoutBody()) }),
    ...more,
  });
}

const headOf = (endpoint: Endpoint, lines: string[], version = 'HTTP/1.1') => {
  const { method, path } = ENDPOINTS[endpoint];
  return [`${method} ${path} ${version}`, 'Host: a', ...lines, 'Connection: close', '', ''].join('\r\n');
};

async function firstOf(answers: Promise<Answer[]>): Promise<Answer> {
  const [answer] = await answers;
  return answer ?? expect.fail('there is no answer');
}

const raw = ({ port }: TestGateway, bytes: string) => firstOf(rawExchange(port, bytes));

/** A request whose body is not yet whole: the gateway counts it, and the backend does not have it. */
async function unfinishedRequest({ port, adminUrl }: TestGateway) {
  const socket = await rawConnection(port);
  socket.write(headOf('payments', [`Authorization: ${ALPHA}`, 'Content-Length: 10']));
  await until(async () => (await metric(adminUrl, 'oncegate_in_flight')) === 1);
  return socket;
}

async function whileFull(endpoint: Endpoint): Promise<Answer> {
  const held = await unfinishedRequest(strict);
  const answer = await ask(endpoint, strict);
  held.destroy();
  await until(async () => (await metric(strict.adminUrl, 'oncegate_in_flight')) === 0);
  return answer;
}

/** A request on a connection that was open before the gateway began to shut down. */
async function whileShuttingDown(endpoint: Endpoint): Promise<Answer> {
  const ending = await open();
  const late = await rawConnection(ending.port);
  const held = await unfinishedRequest(ending);
  const ended = ending.shutdown();
  await until(() => !ending.gateway.server.listening);
  late.write(headOf(endpoint, [`Authorization: ${ALPHA}`, `x-service-idempotency: ${newKey()}`]));
  const answer = await firstOf(answersOn(late));
  held.destroy();
  await ended;
  return answer;
}

async function withoutStore(): Promise<Answer> {
  const redis = await startRedis();
  const gateway = await open(onRedis(redis));
  await redis.kill();
  return await ask('payments', gateway);
}

async function withoutCheckOfKeys(endpoint: Endpoint): Promise<Answer> {
  const backend = await openKeyBackend();
  backend.answer = (res) => res.destroy();
  return await ask(endpoint, await open({ auth: { keys: { source: 'upstream' } } }, backend));
}

/** No request is known to cause a mistake, so the gateway gets a clock that fails while a request is checked. */
async function withBrokenClock(endpoint: Endpoint): Promise<Answer> {
  const wallMs = () => {
    if (new Error().stack?.includes('node_modules/router')) throw new Error('the clock is broken');
    return systemClock.wallMs();
  };
  return await ask(endpoint, await open({}, { clock: { ...systemClock, wallMs } }));
}

/** The answer to a second request with a key, after the first one has ended. */
async function second(fault: string, amount = 10): Promise<Answer> {
  const key = newKey();
  await withdraw(main.url, { key, fault });
  // A response that is too large reaches the merchant before its tombstone is stored.
  await until(async () => (await metric(main.adminUrl, 'oncegate_executing')) === 0);
  return await withdraw(main.url, { key, amount });
}

/** The answer to a second request with a key, while the first one runs. */
async function meanwhile(): Promise<Answer> {
  const key = newKey();
  const first = withdraw(main.url, { key, fault: 'delay=60000' });
  await until(() => sandbox.requests.ofKey(key) === 1);
  const answer = await withdraw(main.url, { key, headers: { Prefer: 'wait=0' } });
  sandbox.endDelays(key);
  expect((await first).status).toBe(201);
  return answer;
}

/** What an answer has beside its status and its code, and what the backend gets until then. */
interface Expected {
  /** At most so many seconds. */
  retryAfterS?: number;
  authenticate?: string;
  /** The member `detail` of the problem. */
  detail?: RegExp;
  /** How many requests reach the backend. Default: none. */
  sent?: number;
  /** How many payouts it makes, if the endpoint is `payments`. Default: none. */
  paid?: number;
}

interface Row extends Expected {
  endpoints: Endpoint[];
  status: number;
  code: ProblemCode;
  when: string;
  answer: (endpoint: Endpoint) => Promise<Answer>;
}

const row = (
  endpoints: Endpoint[],
  [status, code, when]: [number, ProblemCode, string],
  answer: Row['answer'],
  expected: Expected = {},
): Row => ({ endpoints, status, code, when, answer, ...expected });

const BOTH: Endpoint[] = ['balance', 'payments'];
const PAYMENTS: Endpoint[] = ['payments'];
const EXECUTED = { sent: 1, paid: 1 };
const SOON = { retryAfterS: 1 };
const withFault = (fault: string) => ({ headers: { 'X-Sandbox-Fault': fault } });

/** Every answer of the gateway itself, and what causes it. */
const ROWS: Row[] = [
  row(BOTH, [400, 'invalid_target', 'a path with an empty segment'], (endpoint) =>
    ask(endpoint, main, { path: ENDPOINTS[endpoint].path.replace(/\/(?=\w+[._])/, '//') }),
  ),
  row(BOTH, [400, 'invalid_request', 'two lines Host'], (endpoint) =>
    raw(main, headOf(endpoint, ['Host: b'])),
  ),
  row(PAYMENTS, [400, 'idempotency_key_invalid', 'an empty key'], () => withdraw(main.url, { key: '' })),
  row(PAYMENTS, [400, 'idempotency_key_required', 'no key where one is required'], () =>
    withdraw(strict.url),
  ),
  row(PAYMENTS, [400, 'idempotency_key_required', 'no key, and a body that is no JSON'], () => {
    const headers = { Authorization: ALPHA };
    return send(strict.url, { ...ENDPOINTS.payments, headers, body: '{"action":"withdraw"' });
  }),
  row(BOTH, [401, 'missing_credentials', 'no Authorization'], (endpoint) => raw(main, headOf(endpoint, [])), {
    authenticate: REALM,
  }),
  row(
    BOTH,
    [401, 'invalid_key', 'an unknown secret key'],
    (endpoint) => ask(endpoint, main, { headers: { Authorization: 'Bearer sk_unknown' } }),
    { authenticate: `${REALM}, error="invalid_token"` },
  ),
  row(
    PAYMENTS,
    [403, 'insufficient_scope', 'a secret key without the scope'],
    (endpoint) => ask(endpoint, main, { headers: RESTRICTED }),
    { authenticate: `${REALM}, error="insufficient_scope", scope="withdraw"` },
  ),
  row(
    BOTH,
    [403, 'insufficient_scope', 'a key with scopes, an unclear request'],
    (endpoint) => ask(endpoint, main, { headers: { ...RESTRICTED, ...OVERRIDE } }),
    { authenticate: `${REALM}, error="insufficient_scope"`, detail: /header/ },
  ),
  row(BOTH, [404, 'not_declared', 'a header may override the method'], (endpoint) =>
    ask(endpoint, strict, { headers: OVERRIDE }),
  ),
  row(BOTH, [405, 'method_not_allowed', 'TRACE'], (endpoint) => ask(endpoint, main, { method: 'TRACE' })),
  row(BOTH, [408, 'request_timeout', 'a head that does not end'], (endpoint) =>
    raw(impatient, headOf(endpoint, []).slice(0, -5)),
  ),
  row(PAYMENTS, [408, 'request_timeout', 'a body that does not end'], (endpoint) => {
    const lines = [`Authorization: ${ALPHA}`, `x-service-idempotency: ${newKey()}`, 'Content-Length: 9'];
    return raw(impatient, headOf(endpoint, lines));
  }),
  row(PAYMENTS, [409, 'request_in_flight', 'the same key, the first one runs'], () => meanwhile(), {
    ...EXECUTED,
    ...SOON,
  }),
  row(
    PAYMENTS,
    [409, 'outcome_unknown', 'the same key, the outcome is unknown'],
    () => second('execute-then-reset'),
    { ...EXECUTED, detail: / since 20\d\d-\d\d-\d\dT/ },
  ),
  row(
    PAYMENTS,
    [409, 'response_not_stored', 'the same key, the result was too large'],
    () => second(`huge=${2 * MAX_STORED_BYTES}`),
    EXECUTED,
  ),
  row(PAYMENTS, [413, 'body_too_large', 'a body over the limit'], (endpoint) =>
    ask(endpoint, main, { body: 'x'.repeat(MAX_BODY_BYTES + 1) }),
  ),
  row(BOTH, [417, 'invalid_request', 'an unknown expectation'], (endpoint) =>
    raw(main, headOf(endpoint, ['Expect: more'])),
  ),
  row(
    PAYMENTS,
    [422, 'idempotency_key_reused', 'the same key, another request'],
    () => second('delay=0', 11),
    EXECUTED,
  ),
  row(
    BOTH,
    [429, 'rate_limited', 'more than the merchant may send'],
    (endpoint) => ask(endpoint, main, { headers: CHARLIE }),
    { retryAfterS: 3600 },
  ),
  row(BOTH, [431, 'invalid_request', 'a header that is too large'], (endpoint) =>
    ask(endpoint, main, { headers: { 'X-Large': 'x'.repeat(20_000) } }),
  ),
  row(BOTH, [500, 'internal_error', 'a mistake of the gateway'], withBrokenClock),
  row(BOTH, [502, 'upstream_unreachable', 'the backend does not listen'], async (endpoint) =>
    ask(endpoint, await open({}, { url: `http://127.0.0.1:${await freePort()}` })),
  ),
  row(
    BOTH,
    [502, 'outcome_unknown', 'the backend breaks the connection'],
    (endpoint) => ask(endpoint, main, withFault('execute-then-reset')),
    EXECUTED,
  ),
  row(BOTH, [503, 'upstream_unreachable', 'the secret key cannot be checked'], withoutCheckOfKeys, SOON),
  row(PAYMENTS, [503, 'store_unavailable', 'the store does not answer'], withoutStore, SOON),
  row(BOTH, [503, 'overloaded', 'limits.inFlight is reached'], whileFull, SOON),
  row(BOTH, [503, 'shutting_down', 'the gateway shuts down'], whileShuttingDown, SOON),
  row(
    BOTH,
    [504, 'outcome_unknown', 'the backend does not answer in time'],
    async (endpoint) =>
      ask(endpoint, await open({ upstream: { responseTimeoutMs: 1000 } }), withFault('execute-then-hang')),
    EXECUTED,
  ),
  row(BOTH, [505, 'invalid_request', 'another version of HTTP'], (endpoint) =>
    raw(main, headOf(endpoint, [], 'HTTP/2.0')),
  ),
  row(PAYMENTS, [508, 'loop_detected', 'hops that cannot be read'], () =>
    withdraw(main.url, { key: newKey(), headers: { 'Oncegate-Hops': 'none' } }),
  ),
];

/** `STATUS CODE`, for one endpoint or for both. */
const ownAnswers = (endpoint?: Endpoint) =>
  new Set(
    ROWS.filter(({ endpoints }) => !endpoint || endpoints.includes(endpoint)).map(
      ({ status, code }) => `${status} ${code}`,
    ),
  );

/** How many requests the gateways have counted under this outcome. */
async function countedAs(outcome: string): Promise<number> {
  const texts = await Promise.all(opened.map(({ gateway }) => gateway.metrics.text()));
  const counts = texts.map((text) => new Scrape(text).value('oncegate_requests_total', { outcome }) ?? 0);
  return counts.reduce((sum, count) => sum + count);
}

/** Runs it, and checks how many requests reach the backend meanwhile, how many payouts it makes, and what is documented. */
async function observed(
  endpoint: Endpoint,
  answer: Row['answer'],
  { sent = 0, paid = 0 }: Expected,
): Promise<Answer> {
  const counts = () => [sandbox.requests.total(), sandbox.ledger.payouts()] as const;
  const [sentBefore, paidBefore] = counts();
  const got = await answer(endpoint);
  const [sentAfter, paidAfter] = counts();
  expect({ sent: sentAfter - sentBefore, paid: paidAfter - paidBefore }).toEqual({
    sent,
    paid: endpoint === 'payments' ? paid : 0,
  });
  const { method, path } = ENDPOINTS[endpoint];
  expect(undocumented(method, path, got)).toEqual([]);
  return got;
}

describe('every answer', () => {
  it.each(ROWS.flatMap((one) => one.endpoints.map((endpoint) => ({ ...one, endpoint }))))(
    '$endpoint, $when: $status $code',
    async ({ endpoint, status, code, answer, ...expected }) => {
      const { retryAfterS, authenticate, detail = /\w/ } = expected;
      const before = await countedAs(code);
      const got = await observed(endpoint, answer, expected);
      await until(async () => (await countedAs(code)) > before);
      const retryAfter = Number(got.headers['retry-after']);
      expectProblem(got, {
        ...{ status, code },
        ...(authenticate && { authenticate }),
        ...(retryAfterS && { retryAfter }),
      });
      if (retryAfterS) expect([retryAfter >= 1, retryAfter <= retryAfterS]).toEqual([true, true]);
      expect(JSON.parse(`${got.body}`).detail).toMatch(detail);
    },
  );

  it('balance: 200', async () => {
    const got = await observed('balance', () => ask('balance', main), { sent: 1 });
    expect([got.status, got.headers['idempotent-replayed']]).toEqual([200, undefined]);
  });

  it('payments: 201', async () => {
    const got = await observed('payments', () => ask('payments', main), EXECUTED);
    expect([got.status, got.headers['idempotent-replayed']]).toEqual([201, undefined]);
  });

  it('payments, the same key, the same request: 201, replayed', async () => {
    const got = await observed('payments', () => second('delay=0'), EXECUTED);
    expect([got.status, got.headers['idempotent-replayed']]).toEqual([201, 'true']);
  });
});

describe('config/openapi.yaml', () => {
  /** Each problem that it has, with the status under which it has it. */
  const documentedIn = (endpoint: Endpoint) => {
    const { method, path } = ENDPOINTS[endpoint];
    return [...responsesOf(method, path)].flatMap(([status, response]) =>
      problemExamples(response).map(([code, example]) => ({ status, code, example })),
    );
  };

  it('is a valid OpenAPI 3.1 document', async () => {
    expect(await new Validator().validate(structuredClone(openapiDocument))).toEqual({ valid: true });
  });

  it('has these answers of the gateway itself, and no others', () => {
    const documented = BOTH.flatMap(documentedIn).map(({ status, code }) => `${status} ${code}`);
    expect(new Set(documented)).toEqual(ownAnswers());
    expect(new Set(ROWS.map(({ code }) => code))).toEqual(new Set(problemCodes));
    // A code that one endpoint does not have may be in a response that both share, but not a status.
    for (const endpoint of BOTH)
      expect(new Set(documentedIn(endpoint).map(({ status }) => status))).toEqual(
        new Set([...ownAnswers(endpoint)].map((answer) => answer.slice(0, 3))),
      );
  });

  it('has examples of problems that the gateway could send', () => {
    for (const { status, code, example } of BOTH.flatMap(documentedIn)) {
      const name = `${status} ${code}`;
      expect(complaintsAbout({ $ref: '#/components/schemas/Problem' }, example), name).toEqual([]);
      const { title } = problem(code as ProblemCode, '');
      const error = { code, retry: retryOf(code as ProblemCode) };
      expect(example, name).toMatchObject({ type: `urn:oncegate:problem:${code}`, title, error });
    }
  });

  it('has examples of requests that are executed', async () => {
    const { content } = openapiDocument.paths['/v1/index.php'].post.requestBody;
    const { schema, examples } = content['application/json'];
    for (const { value } of Object.values<{ value: object }>(examples)) {
      expect(complaintsAbout(schema, value)).toEqual([]);
      expect((await ask('payments', main, { body: JSON.stringify(value) })).status).toBe(201);
    }
  });

  it.each([
    [
      'x-service-idempotency',
      'ServiceIdempotency',
      ['k', 'a b', 'x'.repeat(255)],
      ['', 'k\u00e9', 'x'.repeat(256)],
    ],
    ['Idempotency-Key', 'IdempotencyKey', ['k', `"${'x'.repeat(255)}"`], ['', `"${'x'.repeat(256)}"`]],
  ])('describes the keys that the gateway accepts in %s', async (header, parameter, accepted, refused) => {
    const { schema } = openapiDocument.components.parameters[parameter];
    const body = JSON.stringify(payoutBody());
    for (const key of [...accepted, ...refused]) {
      const isAccepted = accepted.includes(key);
      const headers = { Authorization: ALPHA, [header]: key };
      const { status } = await send(main.url, { ...ENDPOINTS.payments, headers, body });
      expect([status, complaintsAbout(schema, key).length === 0], key).toEqual([
        isAccepted ? 201 : 400,
        isAccepted,
      ]);
    }
  });
});
