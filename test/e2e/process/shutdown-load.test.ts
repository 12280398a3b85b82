import { describe, expect, it } from 'vitest';
import { send } from '../../support/client.ts';
import { until } from '../../support/until.ts';
import { configFor, openSandbox, startGateway } from './gateways.ts';
import { startTraffic } from './traffic.ts';

const DELAY_MS = 3000;
const MERCHANTS = 12;

describe.concurrent('SIGTERM under load', () => {
  it.each([1, 2])(
    'fails no request, completes what runs, says that it drains, and ends with 0: %i workers',
    async (workers) => {
      const sandbox = await openSandbox();
      const shutdown = { delayMs: DELAY_MS, graceMs: 5000 };
      const gateway = await startGateway(configFor(sandbox, { workers, shutdown }));
      const traffic = startTraffic(gateway.url, MERCHANTS);
      await until(() => traffic.sent.length > 10 * MERCHANTS);

      const signalledAtMs = performance.now();
      const ended = gateway.end();
      const draining = await until(async () => {
        const answer = await send(gateway.adminUrl, { path: '/readyz' });
        return answer.status === 503 ? answer : undefined;
      });
      expect(draining.json<{ checks: object[] }>().checks).toContainEqual(
        expect.objectContaining({ name: 'draining', ok: false, detail: 'shutting down' }),
      );
      expect(performance.now() - signalledAtMs).toBeLessThan(DELAY_MS);
      expect(await ended).toBe(0);
      expect(performance.now() - signalledAtMs).toBeLessThan(DELAY_MS + 3000);
      await traffic.stop();

      const { sent } = traffic;
      // A client may use a kept-alive connection until the delay has passed. After that, only new connections are tried, and they
      // are refused. A connection that the kernel had established but the gateway had not accepted is reset.
      const failed = sent.filter(({ error }) => error !== undefined);
      expect(
        failed.filter(({ reused, endedAtMs }) => reused || endedAtMs < signalledAtMs + DELAY_MS),
      ).toEqual([]);
      expect(failed.filter(({ error }) => !/^ECONN(?:REFUSED|RESET)$/.test(error ?? ''))).toEqual([]);
      expect(failed.filter(({ key }) => sandbox.requests.ofKey(key) > 0)).toEqual([]);
      expect(failed.length).toBeLessThanOrEqual(MERCHANTS);
      expect(sent.filter(({ endedAtMs }) => endedAtMs > signalledAtMs).length).toBeGreaterThan(2 * MERCHANTS);
      const answers = sent.flatMap(({ answer }) => answer ?? []);
      const paid = answers.filter(({ status }) => status === 201);
      const refused = answers.filter(({ status }) => status !== 201);
      expect(refused.filter(({ body }) => !body.includes('"shutting_down"'))).toEqual([]);
      expect(sandbox.ledger.payouts()).toBe(paid.length);
      expect(sandbox.requests.total()).toBe(paid.length);
      expect(sandbox.ledger.duplicateKeys()).toEqual([]);
    },
  );
});
