import { Redis } from 'ioredis';
import { expect, it, onTestFinished } from 'vitest';
import { TcpProxy } from '../support/breakable-wire.ts';
import { launchRedis } from '../support/redis-process.ts';
import { until } from '../support/until.ts';
import { draw, type Fault } from './chaos/faults.ts';

const fault = (name: string, of: Fault['of'], more: Partial<Fault> = {}): Fault => ({
  ...{ name, of, inject: async () => {}, heal: async () => {} },
  ...more,
});
const names = (faults: readonly Fault[]) => faults.map(({ name }) => name);

it('at most one fault of the store is drawn, and a fault that must be alone is drawn alone', () => {
  const deck = [
    fault('g1', 'gateway'),
    fault('s1', 'store'),
    fault('s2', 'store'),
    fault('alone', 'gateway', { alone: true }),
    fault('b1', 'backend'),
  ];
  const first = draw(deck, 5);
  expect(names(first.drawn)).toEqual(['g1', 's1', 'b1']);
  expect(names(first.left)).toEqual(['s2', 'alone']);
  const second = draw(first.left, 5);
  expect(names(second.drawn)).toEqual(['s2']);
  expect(names(draw(second.left, 5).drawn)).toEqual(['alone']);
  expect(names(draw([...second.left, ...deck], 5).drawn)).toEqual(['alone']);
});

it('a delayed command reaches the server after one that was sent later', async () => {
  const server = await launchRedis({ appendonly: false });
  onTestFinished(() => server.stop());
  const wire = new TcpProxy(server.port);
  await wire.listen();
  onTestFinished(() => wire.close());
  const client = new Redis(wire.url, { maxRetriesPerRequest: 0, retryStrategy: () => 10 }).on(
    'error',
    () => {},
  );
  onTestFinished(() => client.disconnect());
  await client.ping();
  wire.holdRequests();
  const started = client.set('key', 'started').catch((error: Error) => error);
  await until(() => wire.heldBytes > 0);
  wire.strandHeld();
  expect(await started).toBeInstanceOf(Error);
  await until(() => client.status === 'ready');
  expect(await client.set('key', 'released')).toBe('OK');
  wire.deliverHeld();
  await until(async () => (await client.get('key')) === 'started');
});
