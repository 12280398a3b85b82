/** A gateway, and an application behind it that embeds oncegate, on one store. */
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import type { RequestHandler } from 'express';
import { createProxyMiddleware } from 'http-proxy-middleware';
import { expect, it, onTestFinished } from 'vitest';
import type { RecordView, ShownRecord } from '../../../src/doubts/record-view.ts';
import { forward } from '../../../src/index.ts';
import { httpBackend } from '../../support/backend.ts';
import { withdraw } from '../../support/client.ts';
import { newFolder, run } from '../../support/command.ts';
import { configFile, testConfig } from '../../support/config.ts';
import { expectProblem } from '../../support/problem.ts';
import { gatewayForTest } from '../../support/stack.ts';
import { embed } from './embedded.ts';

/** The application pays each call. With `x-lose` it cuts the connection in place of its answer. Every request is that of M-ALPHA. */
async function openLayers(layer?: string) {
  const folder = newFolder();
  let payouts = 0;
  const app = await embed(
    (to, protect) =>
      to.post('/v1/index.php', protect, (req, res) => {
        payouts++;
        if (req.headers['x-lose'] === undefined) res.status(201).json({ payout: payouts });
        else req.socket.destroy();
      }),
    { folder: join(folder, 'data'), operation: 'withdraw', ...(layer !== undefined && { layer }) },
  );
  const config = testConfig(folder, app.url);
  const gateway = await gatewayForTest(config);
  const file = configFile(config, folder);
  const records = (...args: string[]) => run(['records', ...args, '--config', file]);
  const show = async (...args: string[]) =>
    (JSON.parse((await records('show', ...args, '--json')).stdout) as ShownRecord).record;
  return { url: gateway.url, folder, records, show, payouts: () => payouts };
}

it('a gateway and the application behind it use one store: both execute, and the gateway replays what the application answered', async () => {
  const { url, show, payouts } = await openLayers();
  const first = await withdraw(url, { key: 'k-1' });
  const retry = await withdraw(url, { key: 'k-1' });
  expect([first, retry].map(({ status, json }) => [status, json()])).toEqual([
    [201, { payout: 1 }],
    [201, { payout: 1 }],
  ]);
  expect([first, retry].map(({ headers }) => headers['idempotent-replayed'])).toEqual([undefined, 'true']);
  expect(payouts()).toBe(1);
  const named = ['--merchant', 'M-ALPHA', '--key', 'k-1'];
  const [outer, inner] = [await show(...named), await show(...named, '--layer', 'middleware')];
  expect([outer, inner]).toMatchObject([{ state: 'completed' }, { state: 'completed' }]);
  expect(inner?.recordId).not.toBe(outer?.recordId);
});

it('an application that has the layer of the gateway in front of it refuses the gateway’s request', async () => {
  const { url, payouts } = await openLayers('gateway');
  expectProblem(await withdraw(url, { key: 'k-1' }), { status: 508, code: 'loop_detected' });
  expect(payouts()).toBe(0);
});

it('forward() and other proxies behind idempotency() pass the hops on', async () => {
  const folder = newFolder();
  const seen: unknown[] = [];
  const backend = await httpBackend((req, res) => {
    seen.push(req.headers['oncegate-hops']);
    res.end();
  });
  const open = async (handler: RequestHandler, layer?: string) =>
    await embed((to, protect) => to.use(protect, handler), { folder, ...(layer !== undefined && { layer }) });
  const forwardTo = (upstream: string) => {
    const handler = forward({ upstream });
    onTestFinished(() => handler.close());
    return handler;
  };
  const inner = await open(forwardTo(backend));
  const middle = await open(createProxyMiddleware({ target: inner.url }), 'middle');
  const outer = await open(forwardTo(middle.url));
  expect((await middle.post('k-1')).status).toBe(200);
  expect(seen).toEqual([expect.stringMatching(/^middle;([0-9a-f]{16}), middleware;\1$/)]);
  expectProblem(await outer.post('k-2'), { status: 508, code: 'loop_detected' });
  expect(seen).toHaveLength(1);
});

it('oncegate records resolves the keys of another layer', async () => {
  const { url, folder, records, show } = await openLayers();
  for (const key of ['k-1', 'k-2', 'k-3'])
    expect((await withdraw(url, { key, headers: { 'X-Lose': '1' } })).status).toBe(502);
  const inner = async (key: string) =>
    String((await show('--merchant', 'M-ALPHA', '--key', key, '--layer', 'middleware'))?.execution);
  const note = ['--reason', 'the books'];
  const named = ['--merchant', 'M-ALPHA', '--key', 'k-1', '--execution', await inner('k-1')];
  const resolve = (...layer: string[]) =>
    records('resolve', ...named, ...layer, '--as', 'completed', ...note);
  // In the configuration's layer, this execution is not known.
  expect((await resolve()).code).toBe(1);
  expect((await resolve('--layer', 'Middle')).code).toBe(64);
  expect((await resolve('--layer', 'middleware')).code).toBe(0);

  const file = join(folder, 'many.jsonl');
  const many = async (lines: object[], ...more: string[]) => {
    writeFileSync(file, lines.map((line) => `${JSON.stringify(line)}\n`).join(''));
    return await records('resolve-many', '--from', file, ...note, ...more);
  };
  const lineOf = async (key: string) => {
    return { merchant: 'M-ALPHA', key, execution: await inner(key), as: 'completed' };
  };
  const second = { ...(await lineOf('k-2')), layer: 'middleware' };
  expect(await many([second])).toMatchObject({ code: 0, stdout: expect.stringContaining('1 completed') });
  expect(await many([await lineOf('k-3')], '--layer', 'middleware')).toMatchObject({ code: 0 });

  // Lines of a listing, which has the records of both layers.
  const listed = (await records('list', '--in-doubt', '--lines')).stdout.trim().split('\n');
  const lines = listed.map((text) => ({ ...(JSON.parse(text) as RecordView), as: 'completed' }));
  expect(lines.map(({ key }) => key).sort()).toEqual(['k-1', 'k-2', 'k-3']);
  expect(await many(lines)).toMatchObject({ code: 0, stdout: expect.stringContaining('3 completed') });
});
