import { readFileSync } from 'node:fs';
import { Validator } from '@seriousme/openapi-schema-validator';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { openapi } from '../../../scripts/openapi/document.ts';
import { OWN_ANSWERS } from '../../../scripts/openapi/own-answers.ts';
import { send, type TestRequest, withdraw } from '../../support/client.ts';
import { openKeyBackend } from '../../support/key-backend.ts';
import { codeOf, openapiDocument, undocumented } from '../../support/openapi.ts';
import { payoutBody } from '../../support/payout.ts';
import { answersOn, payoutBytes, rawConnection, rawExchange } from '../../support/raw.ts';
import { startRedis } from '../../support/redis-server.ts';
import { openStack, type Stack } from '../../support/stack.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';

const MAX_BODY_BYTES = 4096;
const MAX_STORED_BYTES = 1024;
const PATHS = { balance: '/v2/get_balance', payments: '/v1/index.php' };
const METHODS = { balance: 'GET', payments: 'POST' };
type Endpoint = keyof typeof PATHS;

type Answer = Awaited<ReturnType<typeof send>> | Awaited<ReturnType<typeof rawExchange>>[number];

const bearer = { Authorization: 'Bearer sk_sandbox_alpha' };

let main: Stack;
let refusing: Stack;
/** Waits for no merchant. Only for the answer that says so: a whole request can be late on a loaded machine. */
let refusingSlowRequests: Stack;
/** Waits for no backend. */
let givingUp: Stack;
const stacks: Stack[] = [];

async function opened(...args: Parameters<typeof openStack>): Promise<Stack> {
  const stack = await openStack(...args);
  stacks.push(stack);
  return stack;
}

beforeAll(async () => {
  main = await opened({
    limits: {
      bodyBytes: MAX_BODY_BYTES,
      perMerchant: { merchants: { 'M-CHARLIE': { requests: 1, windowMs: 3_600_000 } } },
    },
    idempotency: { maxStoredBytes: MAX_STORED_BYTES },
  });
  refusingSlowRequests = await opened({ limits: { bodyTimeoutMs: 200, headerTimeoutMs: 400 } });
  givingUp = await opened({ upstream: { responseTimeoutMs: 2000 } });
  refusing = await opened({
    limits: { inFlight: 1 },
    idempotency: { undeclared: 'refuse' },
    operations: [
      { name: 'balance', match: { method: 'GET', path: PATHS.balance } },
      {
        name: 'withdraw',
        match: { method: 'POST', path: PATHS.payments, where: { action: 'withdraw' } },
        idempotency: { key: 'required' },
      },
    ],
  });
});
afterAll(() => Promise.all(stacks.map((stack) => stack.close())));

/** A request to the endpoint, otherwise well-formed. */
function ask(endpoint: Endpoint, url: string, { headers, ...more }: TestRequest = {}): Promise<Answer> {
  const body = JSON.stringify(payoutBody());
  return send(url, {
    method: METHODS[endpoint],
    path: PATHS[endpoint],
    headers: { ...bearer, 'Content-Type': 'application/json', ...headers },
    ...(endpoint === 'payments' && { body }),
    ...more,
  });
}

async function raw(port: number, head: string): Promise<Answer> {
  const [answer] = await rawExchange(port, head);
  if (!answer) throw new Error('there is no answer');
  return answer;
}

const lines = (endpoint: Endpoint, version: string, ...more: string[]) =>
  [
    `${METHODS[endpoint]} ${PATHS[endpoint]} ${version}`,
    'Host: a',
    ...more,
    'Connection: close',
    '',
    '',
  ].join('\r\n');

let used = 0;
const newKey = () => `key-${++used}`;

/** While a request fills the gateway. */
async function whileFull(endpoint: Endpoint): Promise<Answer> {
  return await until(async () => {
    // Each try has a request of its own: that of a try before may have been refused because another test filled the gateway.
    const socket = await rawConnection(refusing.port);
    socket.write(
      lines('payments', 'HTTP/1.1', `Authorization: ${bearer.Authorization}`, 'Content-Length: 10'),
    );
    try {
      const answer = await ask(endpoint, refusing.url, { headers: { 'x-service-idempotency': newKey() } });
      return answer.status === 503 ? answer : undefined;
    } finally {
      socket.destroy();
    }
  });
}

/** A request on a connection that was open before the gateway began to shut down. */
async function whileShuttingDown(endpoint: Endpoint): Promise<Answer> {
  const stack = await openStack();
  const [held, late] = [await rawConnection(stack.port), await rawConnection(stack.port)];
  held.write(lines('payments', 'HTTP/1.1', `Authorization: ${bearer.Authorization}`, 'Content-Length: 10'));
  const { gateway, sandbox } = stack;
  await until(async () => (await gateway.metrics.text()).includes('oncegate_in_flight 1\n'));
  const closed = stack.shutdown();
  await until(() => !gateway.server.listening);
  late.write(lines(endpoint, 'HTTP/1.1', `Authorization: ${bearer.Authorization}`));
  const [answer] = await answersOn(late);
  held.destroy();
  await closed;
  await sandbox.close();
  if (!answer) throw new Error('there is no answer');
  return answer;
}

async function withoutBackend(endpoint: Endpoint): Promise<Answer> {
  const stack = await opened();
  await stack.sandbox.close();
  return await ask(endpoint, stack.url, { headers: { 'x-service-idempotency': newKey() } });
}

async function withoutStore(): Promise<Answer> {
  const redis = await startRedis();
  const stack = await opened(onRedis(redis));
  await redis.kill();
  return await withdraw(stack.url, { key: newKey() });
}

async function uncheckedKey(endpoint: Endpoint): Promise<Answer> {
  const backend = await openKeyBackend();
  backend.answer = (res) => res.destroy();
  const stack = await opened({ upstream: { url: backend.url }, auth: { keys: { source: 'upstream' } } });
  return await ask(endpoint, stack.url);
}

/** The first answer under a key that a second request then asks for. */
async function second(fault: string, amount = 10): Promise<Answer> {
  const key = newKey();
  await withdraw(main.url, { key, fault });
  // A response that is too large reaches the merchant before its tombstone is stored.
  await until(() => main.gateway.metrics.text().then((text) => text.includes('\noncegate_executing 0\n')));
  return await withdraw(main.url, { key, fault, amount });
}

async function whileTheFirstRuns(): Promise<Answer> {
  const { url, sandbox } = await opened();
  const slow = { key: newKey(), fault: 'delay=60000' };
  const first = withdraw(url, slow);
  await until(() => sandbox.requests.ofKey(slow.key) > 0);
  const answer = await withdraw(url, { ...slow, headers: { Prefer: 'wait=0' } });
  sandbox.endDelays(slow.key);
  await first;
  return answer;
}

const key = () => ({ headers: { 'x-service-idempotency': newKey() } });

/** How each answer is provoked, by code and status. */
const PROVOKE: Record<string, (endpoint: Endpoint) => Promise<Answer>> = {
  'invalid_target 400': (endpoint) =>
    ask(endpoint, main.url, { path: PATHS[endpoint].replace(/\/(?=\w+[._])/, '//') }),
  'invalid_request 400': (endpoint) => raw(main.port, lines(endpoint, 'HTTP/1.1', 'Host: b')),
  'idempotency_key_invalid 400': () => withdraw(main.url, { key: '' }),
  'idempotency_key_required 400': () => withdraw(refusing.url),
  'missing_credentials 401': (endpoint) => raw(main.port, lines(endpoint, 'HTTP/1.1')),
  'invalid_key 401': (endpoint) =>
    ask(endpoint, main.url, { headers: { Authorization: 'Bearer sk_unknown' } }),
  'insufficient_scope 403': (endpoint) =>
    endpoint === 'payments'
      ? withdraw(main.url, { secret: 'sk_test_balance_only' })
      : ask(endpoint, main.url, {
          headers: { Authorization: 'Bearer sk_test_balance_only', 'X-HTTP-Method-Override': 'POST' },
        }),
  'not_declared 404': (endpoint) =>
    ask(endpoint, refusing.url, { headers: { ...key().headers, 'X-HTTP-Method-Override': 'PUT' } }),
  'request_timeout 408': (endpoint) =>
    endpoint === 'balance'
      ? raw(main.port, `GET ${PATHS.balance} HTTP/1.1\r\nHost: a\r\n`)
      : raw(
          refusingSlowRequests.port,
          payoutBytes({ lines: ['x-service-idempotency: slow'] })
            .toString()
            .slice(0, -5),
        ),
  'request_in_flight 409': whileTheFirstRuns,
  'outcome_unknown 409': () => second('execute-then-reset'),
  'response_not_stored 409': () => second(`huge=${2 * MAX_STORED_BYTES}`),
  'body_too_large 413': () => ask('payments', main.url, { ...key(), body: 'x'.repeat(MAX_BODY_BYTES + 1) }),
  'invalid_request 417': (endpoint) => raw(main.port, lines(endpoint, 'HTTP/1.1', 'Expect: more')),
  'idempotency_key_reused 422': () => second('delay=0', 11),
  'rate_limited 429': async (endpoint) => {
    const headers = { Authorization: 'Bearer sk_sandbox_charlie' };
    await ask(endpoint, main.url, { headers });
    return await ask(endpoint, main.url, { headers });
  },
  'invalid_request 431': (endpoint) =>
    ask(endpoint, main.url, { headers: { 'X-Large': 'x'.repeat(20_000) } }),
  'upstream_unreachable 502': withoutBackend,
  'outcome_unknown 502': (endpoint) =>
    ask(endpoint, main.url, { headers: { 'X-Sandbox-Fault': 'execute-then-reset' } }),
  'upstream_unreachable 503': uncheckedKey,
  'store_unavailable 503': withoutStore,
  'overloaded 503': whileFull,
  'shutting_down 503': whileShuttingDown,
  'outcome_unknown 504': (endpoint) =>
    ask(endpoint, givingUp.url, { headers: { 'X-Sandbox-Fault': 'hang' } }),
  'invalid_request 505': (endpoint) => raw(main.port, lines(endpoint, 'HTTP/2.0')),
};

/** It means a mistake in the gateway, which no request is known to cause. */
const NEVER_SEEN = ['internal_error 500'];

const documented = OWN_ANSWERS.flatMap((answer) =>
  answer.endpoints.map((endpoint) => ({ ...answer, endpoint })),
);

describe('config/openapi.yaml', () => {
  it('is what scripts/openapi.ts writes', () => {
    const text = readFileSync(new URL('../../../config/openapi.yaml', import.meta.url), 'utf8');
    expect(text).toBe(stringify(openapi(), { aliasDuplicateObjects: false, lineWidth: 128 }));
  });

  it('is a valid OpenAPI 3.1 document', async () => {
    expect(await new Validator().validate(structuredClone(openapiDocument))).toEqual({ valid: true });
  });

  it('has the statuses that docs/merchants.md has for each code', () => {
    const rows = readFileSync(new URL('../../../docs/merchants.md', import.meta.url), 'utf8').matchAll(
      /^\| `(\w+)` \| ([\d, ]+) \|/gm,
    );
    const fromTable = [...rows].map(([, code, statuses = '']) => [
      code,
      statuses.split(', ').map(Number).sort(),
    ]);
    const ours = Map.groupBy(OWN_ANSWERS, ({ code }) => code);
    expect(Object.fromEntries(fromTable)).toEqual(
      Object.fromEntries([...ours].map(([code, all]) => [code, all.map(({ status }) => status).sort()])),
    );
  });

  it.concurrent.each(documented.filter(({ code, status }) => !NEVER_SEEN.includes(`${code} ${status}`)))(
    '$endpoint can answer $status $code as documented',
    async ({ code, status, endpoint }) => {
      const answer = (await PROVOKE[`${code} ${status}`]?.(endpoint)) as Answer;
      expect({
        status: answer.status,
        code: codeOf(answer),
        body: `${answer.body}`.slice(0, 200),
      }).toMatchObject({
        status,
        code,
      });
      expect(undocumented(METHODS[endpoint], PATHS[endpoint], answer)).toEqual([]);
    },
  );

  it.concurrent.each(['balance', 'payments'] as const)(
    '%s answers with success as documented',
    async (endpoint) => {
      const { headers } = key();
      for (const isReplay of [false, endpoint === 'payments']) {
        const answer = await ask(endpoint, main.url, { headers });
        expect(answer.status).toBe(endpoint === 'balance' ? 200 : 201);
        expect(undocumented(METHODS[endpoint], PATHS[endpoint], answer)).toEqual([]);
        expect(answer.headers['idempotent-replayed']).toBe(isReplay ? 'true' : undefined);
      }
    },
  );
});
