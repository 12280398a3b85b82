import { renameSync, writeFileSync } from 'node:fs';
import { describe, expect, it } from 'vitest';
import { stringify } from 'yaml';
import { send } from '../../support/client.ts';
import { metric } from '../../support/metrics.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway, workersOf } from './gateways.ts';

const MANY = 20;

describe.concurrent.each([1, 2])('the level of the log, %i workers', (workers) => {
  it('changes while the gateway runs, for every process and for the lines of requests', async () => {
    const sandbox = await openSandbox();
    const config = configFor(sandbox, { workers, log: { level: 'info' } });
    const gateway = await startGateway(config);
    const setLevel = async (level: 'info' | 'warn' | 'silent') => {
      const before = await metric(gateway.adminUrl, 'oncegate_config_reloads_total', { result: 'ok' });
      writeFileSync(`${gateway.file}.new`, stringify({ ...config, log: { level } }));
      renameSync(`${gateway.file}.new`, gateway.file);
      process.kill(gateway.pid, 'SIGHUP');
      await until(
        async () =>
          (await metric(gateway.adminUrl, 'oncegate_config_reloads_total', { result: 'ok' })) > before,
      );
    };
    let sent = 0;
    const requestsWith = async () => {
      // Each is a new connection, so both workers get some.
      const id = `level-${++sent}-`;
      for (let i = 0; i < MANY; i++)
        await send(gateway.url, { headers: { 'X-Request-Id': `${id}${String(i).padStart(4, '0')}` } });
      return () => gateway.lines.filter((line) => line.includes(id)).map((line) => JSON.parse(line));
    };

    const [loud, quiet] = [await requestsWith(), await setLevel('warn').then(requestsWith)];
    await setLevel('info');
    const again = await requestsWith();
    await until(() => again().length === MANY);
    expect(loud()).toHaveLength(MANY);
    expect(quiet()).toEqual([]);
    // Each of them writes lines again.
    expect(await workersOf(gateway, workers)).toHaveLength(workers);
    await setLevel('silent');
    await until(async () => (await requestsWith())().length === 0);
    const lines = gateway.lines.length;
    await requestsWith();
    expect(await gateway.end()).toBe(0);
    expect(gateway.lines).toHaveLength(lines);
  });
});
