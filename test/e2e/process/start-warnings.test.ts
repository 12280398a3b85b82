import { expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import { startRedis } from '../../support/redis-server.ts';
import { onRedis } from '../../support/stores.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway } from './gateways.ts';

it('a Redis that does not keep its records is warned about in the log at the start, however many workers', async () => {
  const [sandbox, redis] = [await openSandbox(), await startRedis({ appendonly: false })];
  const open = (workers: number) => startGateway(configFor(sandbox, { workers, ...onRedis(redis) }));
  for (const gateway of await Promise.all([open(1), open(2)])) {
    await until(() =>
      gateway.lines.some((line) => /"level":"warn".*redis runs without appendonly/.test(line)),
    );
    const { status, body } = await send(gateway.adminUrl, { path: '/readyz' });
    expect(status).toBe(200);
    expect(body.toString()).toContain('redis runs without appendonly');
    expect(await gateway.end()).toBe(0);
  }
});
