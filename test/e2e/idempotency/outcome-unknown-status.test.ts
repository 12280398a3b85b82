import { randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, request, type ServerResponse } from 'node:http';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { listen } from '../../../src/gateway/http-server.ts';
import { createSandbox, type Sandbox } from '../../../src/sandbox/sandbox.ts';
import { send, type TestAnswer, withdraw } from '../../support/client.ts';
import { type MoreConfig, temporaryFolder, testConfig } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { expectProblem } from '../../support/problem.ts';
import { openGateway, type TestGateway } from '../../support/stack.ts';
import { openStackOn, type StoreKind, storeKinds, storeSections } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { endToEndLines } from './answers.ts';
import { LOOKUP_TOKEN, lookingUp } from './policies.ts';

const inDoubt = { status: 409, code: 'outcome_unknown' } as const;
const isReplay = ({ headers }: TestAnswer) => headers['idempotent-replayed'] === 'true';
const gaveUp = (status: number) => `<html>${status} of the proxy</html>`;

/**
 * A proxy in front of the sandbox that gives up waiting: it forwards the request, and answers with the status in the header
 * X-Gives-Up. It forwards all other requests and their answers.
 */
async function openProxy(backend: string) {
  const server = createServer((req, res) => {
    const status = Number(req.headers['x-gives-up'] ?? 0);
    const options = { method: req.method, headers: req.headers, agent: false };
    const passed = request(new URL(req.url ?? '', backend), options, (answer) =>
      status ? answer.resume() : answerWith(res, answer),
    );
    passed.on('error', () => res.destroy());
    req.pipe(passed);
    if (!status) return;
    res.writeHead(status, ['Content-Type', 'text/html', 'X-Proxy', 'one', 'X-Proxy', 'two']);
    res.end(gaveUp(status));
  });
  const port = await listen(server, '127.0.0.1', 0);
  const close = () => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  };
  return { url: `http://127.0.0.1:${port}`, close };
}

function answerWith(res: ServerResponse, answer: IncomingMessage): void {
  res.writeHead(answer.statusCode ?? 0, answer.rawHeaders);
  answer.pipe(res);
}

describe.concurrent.each(storeKinds)(
  'on %s, a proxy in front of the backend that gives up',
  (kind: StoreKind) => {
    let sandbox: Sandbox;
    let proxy: Awaited<ReturnType<typeof openProxy>>;
    let holding: TestGateway;
    let asking: TestGateway;
    beforeAll(async () => {
      sandbox = await createSandbox({ port: 0, lookupToken: LOOKUP_TOKEN });
      proxy = await openProxy(sandbox.url);
      const open = async (more: MoreConfig = {}) =>
        await openGateway(
          testConfig(temporaryFolder(), proxy.url, { ...(await storeSections(kind)), ...more }),
        );
      holding = await open();
      // A lease that does not lapse even on a loaded machine.
      asking = await open(lookingUp({}, 5000));
    });
    afterAll(async () => {
      await Promise.all([holding?.shutdown(), asking?.shutdown()]);
      await proxy?.close();
      await sandbox?.close();
    });

    it.each([502, 504])(
      'with %i: the first caller gets exactly that, and the key is in doubt',
      async (status) => {
        const key = randomUUID();
        const first = await withdraw(holding.url, { key, headers: { 'X-Gives-Up': `${status}` } });
        expect([first.status, first.body.toString()]).toEqual([status, gaveUp(status)]);
        const lines = endToEndLines(first).filter(([name]) => name === 'X-Proxy' || name === 'Content-Type');
        expect(lines).toEqual([
          ['Content-Type', 'text/html'],
          ['X-Proxy', 'one'],
          ['X-Proxy', 'two'],
        ]);
        expect(isReplay(first)).toBe(false);
        await until(() => sandbox.ledger.payouts({ key }) === 1);
        for (const _ of ['first', 'second']) expectProblem(await withdraw(holding.url, { key }), inDoubt);
        expect(sandbox.requests.ofKey(key)).toBe(1);
        expect(sandbox.ledger.payouts({ key })).toBe(1);
      },
    );

    it('counts by its cause, and as an unknown outcome', async () => {
      const counts = async () => [
        await metric(holding.adminUrl, 'oncegate_in_doubt_total', { operation: 'withdraw', cause: 'status' }),
        await metric(holding.adminUrl, 'oncegate_requests_total', { outcome: 'outcome_unknown' }),
      ];
      const [doubts = 0, outcomes = 0] = await counts();
      await withdraw(holding.url, { key: randomUUID(), headers: { 'X-Gives-Up': '504' } });
      // Other tests increase the counters as well.
      await until(async () => ((await counts())[1] ?? 0) > outcomes);
      expect((await counts())[0]).toBeGreaterThan(doubts);
    });

    it('under lookup is looked up, and its result is replayed', async () => {
      const key = randomUUID();
      const first = await withdraw(asking.url, { key, headers: { 'X-Gives-Up': '504' } });
      expect([first.status, first.body.toString()]).toEqual([504, gaveUp(504)]);
      const replay = await until(async () => {
        const retry = await withdraw(asking.url, { key });
        return isReplay(retry) ? retry : undefined;
      });
      expect(replay.status).toBe(201);
      const [transaction] = sandbox.ledger.transactions({ key });
      expect(replay.json()).toMatchObject({ data: { transaction_id: transaction?.id } });
      expect(sandbox.requests.ofKey(key)).toBe(1);
    });

    it('is passed on unchanged to a request without a key', async () => {
      const answer = await withdraw(holding.url, { headers: { 'X-Gives-Up': '502' } });
      expect([answer.status, answer.body.toString()]).toEqual([502, gaveUp(502)]);
    });
  },
);

const match = { method: 'POST', path: '/v1/index.php', body: { action: 'withdraw' } };

describe('an operation whose unknown statuses are configured', () => {
  it('leaves those in doubt, and completes the others', async () => {
    const stack = await openStackOn('sqlite', {
      operations: [{ name: 'withdraw', match, idempotency: { key: 'optional', unknown: [503] } }],
    });
    try {
      const [doubtful, completed] = [randomUUID(), randomUUID()];
      expect((await withdraw(stack.url, { key: doubtful, fault: '503-after' })).status).toBe(503);
      expectProblem(await withdraw(stack.url, { key: doubtful }), inDoubt);
      expect(stack.sandbox.ledger.payouts({ key: doubtful })).toBe(1);
      const first = await withdraw(stack.url, { key: completed, fault: 'status=504' });
      const retry = await withdraw(stack.url, { key: completed });
      expect([first.status, retry.status, isReplay(retry)]).toEqual([504, 504, true]);
      expect(retry.body).toEqual(first.body);
      expect(stack.sandbox.requests.ofKey(completed)).toBe(1);
    } finally {
      await stack.close();
    }
  });

  it('that is too large to be stored is in doubt as well: the status decides before the size', async () => {
    const stack = await openStackOn('sqlite', {
      idempotency: { maxStoredBytes: 1024 },
      operations: [{ name: 'withdraw', match, idempotency: { key: 'optional', unknown: [500] } }],
    });
    try {
      const key = randomUUID();
      const first = await withdraw(stack.url, { key, fault: '500-after,huge=100000' });
      expect([first.status, first.body.length]).toEqual([500, 100_000]);
      expectProblem(await withdraw(stack.url, { key }), inDoubt);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    } finally {
      await stack.close();
    }
  });
});

describe('a lookup without `released`', () => {
  it('releases no key if the backend answers 404, for example to a mistyped path', async () => {
    const { lock, upstream, operations } = lookingUp({ path: '/v1/mistyped?m={merchant}&k={key}' });
    const [operation] = operations ?? [];
    const lookup = operation?.idempotency?.lookup as Record<string, unknown>;
    delete lookup.released;
    const stack = await openStackOn('sqlite', {
      ...(lock ? { lock } : {}),
      ...(upstream ? { upstream } : {}),
      operations: operations ?? [],
    });
    try {
      const key = randomUUID();
      const answer = await send(stack.url, {
        path: '/v1/mistyped',
        headers: { Authorization: 'Bearer sk_sandbox_alpha' },
      });
      expect(answer.status).toBe(404);
      await withdraw(stack.url, { key, fault: 'execute-then-reset' });
      const lookups = () => stack.sandbox.requests.ofPath('GET /v1/mistyped') - 1;
      // Repeatedly, and for much longer than `releaseAfterMs`.
      await until(() => lookups() > 30);
      expectProblem(await withdraw(stack.url, { key }), inDoubt);
      expect(await metric(stack.adminUrl, 'oncegate_resolutions_total')).toBe(0);
      expect(stack.sandbox.requests.ofKey(key)).toBe(1);
      expect(stack.sandbox.ledger.payouts({ key })).toBe(1);
    } finally {
      await stack.close();
    }
  });
});
