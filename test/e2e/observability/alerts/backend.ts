import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { expect, type TestContext } from 'vitest';
import { createSandbox } from '../../../../src/sandbox/sandbox.ts';
import { send, withdraw } from '../../../support/client.ts';
import { newFolder } from '../../../support/command.ts';
import { testConfig } from '../../../support/config.ts';
import { freePort } from '../../../support/free-port.ts';
import { openGateway, openStack } from '../../../support/stack.ts';
import { LOOKUP_TOKEN, lookingUp } from '../../idempotency/policies.ts';
import { executing, keepOn, type Watch } from './watch.ts';

/** The backend is stopped while it executes a payout, and started again with its books. */
export async function backendStops(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const folder = newFolder();
  const options = { databasePath: join(folder, 'ledger.db'), lookupToken: LOOKUP_TOKEN };
  let sandbox = await createSandbox({ port: 0, ...options });
  onTestFinished(() => sandbox.close());
  const { port } = sandbox;
  // Longer than the backend is away.
  const gateway = await openGateway(
    testConfig(folder, sandbox.url, {
      ...lookingUp({ releaseAfterMs: 60_000 }),
      upstream: { responseTimeoutMs: 60_000 },
    }),
  );
  onTestFinished(() => gateway.shutdown());
  await watch.add(gateway);

  const key = randomUUID();
  const pay = () => withdraw(gateway.url, { key, fault: 'execute-then-hang' });
  const { answer } = await executing(sandbox, key, pay);
  await sandbox.close();
  expect((await answer).status).toBe(502);
  const stop = keepOn(100, () => withdraw(gateway.url, { key: randomUUID() }));
  await watch.fire('OncegateUpstreamUnreachable', 'OncegateLookupsFail');

  sandbox = await createSandbox({ port, ...options });
  await watch.clear('OncegateUpstreamUnreachable', 'OncegateLookupsFail');
  await stop();
  const retry = await withdraw(gateway.url, { key });
  expect([retry.status, retry.headers['idempotent-replayed']]).toEqual([201, 'true']);
  expect(sandbox.ledger.payouts({ key })).toBe(1);
}

/** The collector of traces is away. */
export async function collectorIsAway(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const endpoint = `http://127.0.0.1:${await freePort()}`;
  const stack = await openStack({ tracing: { endpoint, ratio: 1, sendEveryMs: 100, timeoutMs: 100 } });
  onTestFinished(() => stack.close());
  await watch.add(stack);
  const stop = keepOn(300, () => withdraw(stack.url, { key: randomUUID() }));
  await watch.fire('OncegateSpansLost');
  await stop();
  await watch.clear('OncegateSpansLost');
}

/** Each request takes the backend more than five seconds. */
export async function backendIsSlow(watch: Watch, { onTestFinished }: TestContext): Promise<void> {
  const stack = await openStack({ upstream: { responseTimeoutMs: 30_000 } });
  onTestFinished(() => stack.close());
  await watch.add(stack);
  const headers = { Authorization: 'Bearer sk_sandbox_alpha' };
  const fields = { ...headers, 'X-Sandbox-Fault': 'delay=5200' };
  const stop = keepOn(300, () => send(stack.url, { path: '/v2/get_balance', headers: fields }));
  await watch.fire('OncegateUpstreamSlow');
  await stop();
  await watch.clear('OncegateUpstreamSlow');
}
