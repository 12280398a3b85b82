import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { expect, test } from 'vitest';
import { NOT_LISTENING } from '../../support/backend.ts';
import { withdraw } from '../../support/client.ts';
import { run } from '../../support/command.ts';
import { configFile } from '../../support/config.ts';
import { metric } from '../../support/metrics.ts';
import { type Stack, stackForTest } from '../../support/stack.ts';
import { until } from '../../support/until.ts';
import { idOf, openTraced } from './support/traced.ts';

const spans = ({ adminUrl }: Pick<Stack, 'adminUrl'>, result: string) =>
  metric(adminUrl, 'oncegate_spans_total', { result });
const pay = (stack: Stack) => withdraw(stack.url, { key: randomUUID() });
const lines = ({ log }: Stack) => log.filter(({ msg }) => String(msg).startsWith('spans were lost'));
/** The spans of a payout. */
const EACH = 5;

test('the collector gets its headers; the log, the metrics and config print do not', async () => {
  const secret = 'Bearer of-the-collector';
  const { stack, collector } = await openTraced({ tracing: { headers: { authorization: secret } } });
  await collector.requestSpans(idOf(await pay(stack)));
  const [first] = collector.requests;
  expect([first?.path, first?.headers.authorization]).toEqual(['/otlp/v1/traces', secret]);
  await until(async () => (await spans(stack, 'exported')) === EACH);
  expect([await spans(stack, 'failed'), await spans(stack, 'dropped')]).toEqual([0, 0]);
  expect(JSON.stringify(stack.log) + (await stack.gateway.metrics.text())).not.toContain('of-the-collector');

  const file = configFile(stack.config);
  const printed = await run(['config', 'print', '--config', file]);
  expect(printed.code).toBe(0);
  expect(printed.stdout).toContain('[secret]');
  expect(printed.stdout).not.toContain('of-the-collector');
});

test('a collector that is away costs spans and no request, and is logged once', async () => {
  const tracing = { endpoint: NOT_LISTENING, ratio: 1, sendEveryMs: 10, timeoutMs: 100 };
  const stack = await stackForTest({ tracing });
  for (let i = 0; i < 3; i++) {
    expect((await pay(stack)).status).toBe(201);
    await until(async () => (await spans(stack, 'failed')) === (i + 1) * EACH);
  }
  expect(lines(stack)).toMatchObject([{ level: 40, reason: 'ECONNREFUSED' }]);
});

test('a collector that refuses is not asked again for the same spans', async () => {
  const { stack, collector } = await openTraced();
  collector.answer = (res) => res.writeHead(500).end('sk_sandbox_alpha was not welcome');
  expect((await pay(stack)).status).toBe(201);
  await until(async () => (await spans(stack, 'failed')) === EACH);
  expect(lines(stack)).toMatchObject([{ reason: 'status 500' }]);
  expect(JSON.stringify(stack.log)).not.toContain('welcome');
  // The next ones are sent.
  collector.answer = (res) => res.writeHead(200).end('{}');
  await pay(stack);
  await until(async () => (await spans(stack, 'exported')) > 0);
});

test('while a collector does not answer, the queue is bounded, and a shutdown is too', async () => {
  const maxQueued = 2 * EACH;
  const { stack, collector } = await openTraced({ tracing: { maxQueued } });
  collector.answer = () => {};
  for (let i = 0; i < 6; i++) expect((await pay(stack)).status).toBe(201);
  expect(await spans(stack, 'dropped')).toBe(6 * EACH - maxQueued);
  const startedMs = performance.now();
  await stack.gateway.shutdown();
  expect(performance.now() - startedMs).toBeLessThan(4000);
  // What waited is lost too.
  expect(await spans(stack, 'dropped')).toBe(6 * EACH);
  // The first line told of one span, and the last one tells of all others.
  expect(lines(stack).reduce((sum, line) => sum + Number(line.spans), 0)).toBe(6 * EACH);
});

test('a collector whose answer never ends is cut off, and sending goes on', async () => {
  const { stack, collector } = await openTraced({ tracing: { timeoutMs: 700 } });
  const { answer } = collector;
  let cut: Promise<unknown> | undefined;
  collector.answer = (res) => {
    collector.answer = answer;
    res.writeHead(200);
    const drip = setInterval(() => res.write(' '), 20);
    cut = once(res, 'close').finally(() => clearInterval(drip));
  };
  await pay(stack);
  await until(() => cut);
  await cut;
  // The spans that ended later are in another batch.
  await until(async () => (await spans(stack, 'failed')) + (await spans(stack, 'exported')) === EACH);
  expect(await spans(stack, 'failed')).toBeGreaterThan(0);
  await collector.requestSpans(idOf(await pay(stack)));
  expect(lines(stack)).toMatchObject([{ reason: 'timeout' }]);
});

test('a shutdown sends the last spans', async () => {
  const { stack, collector } = await openTraced({ tracing: { sendEveryMs: 60_000 } });
  for (let i = 0; i < 40; i++) await pay(stack);
  // Whole batches are sent at once, and the rest waits.
  expect(collector.spans.length).toBeLessThan(40 * EACH);
  await stack.gateway.shutdown();
  expect(collector.spans.length).toBe(40 * EACH);
});
