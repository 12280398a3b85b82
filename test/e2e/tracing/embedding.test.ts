import { Writable } from 'node:stream';
import { pino } from 'pino';
import { expect, test } from 'vitest';
import { createGateway } from '../../../src/index.ts';
import { createSandbox } from '../../../src/sandbox/sandbox.ts';
import { withdraw } from '../../support/client.ts';
import { temporaryFolder, testConfig } from '../../support/config.ts';
import { until } from '../../support/until.ts';
import { closeAfterTest, embed } from '../embedding/embedded.ts';
import { startCollector } from './support/collector.ts';
import { idOf } from './support/traced.ts';

const TRACE = '4bf92f3577b34da6a3ce929d0e0e4736';
const traceparent = `00-${TRACE}-00f067aa0ba902b7-01`;

test('createGateway() sends spans, and its close() the last ones', async () => {
  const collector = await startCollector();
  const sandbox = await createSandbox({ port: 0 });
  closeAfterTest(() => sandbox.close());
  const tracing = { endpoint: collector.url, ratio: 1, sendEveryMs: '1m' as const };
  const config = { ...testConfig(temporaryFolder(), sandbox.url), tracing };
  const gateway = await createGateway(config, { logger: pino({ level: 'silent' }) });
  const { port } = await gateway.listen();
  const url = `http://127.0.0.1:${port}`;
  const paid = await withdraw(url, { key: 'k-1', headers: { traceparent } });
  expect(paid.status).toBe(201);
  await gateway.close();
  const { server, steps } = await collector.requestSpans(idOf(paid));
  expect([server.traceId, steps.length]).toEqual([TRACE, 4]);
});

test('idempotency() logs the trace id, and the handler sees what came', async () => {
  const log: Record<string, unknown>[] = [];
  const sink = new Writable({
    write(chunk: Buffer, _encoding, done) {
      for (const line of chunk.toString().split('\n').filter(Boolean)) log.push(JSON.parse(line));
      done();
    },
  });
  const { post } = await embed(
    (app, protect) =>
      app.post('/payouts', protect, (req, res) => {
        res.status(502).json({ got: req.headers.traceparent });
      }),
    { logger: pino({ level: 'info' }, sink) },
  );
  const answer = await post('k-1', { headers: { traceparent } });
  expect(answer.json()).toEqual({ got: traceparent });
  const request = await until(() => log.find(({ msg }) => msg === 'request'));
  expect(request.traceId).toBe(TRACE);
  // 502 leaves the key in doubt, which is a line of its own.
  expect(log.find(({ msg }) => msg === 'the outcome of an execution is unknown')?.traceId).toBe(TRACE);
});
