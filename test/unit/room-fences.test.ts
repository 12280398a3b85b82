import { fileURLToPath } from 'node:url';
import { expect, it } from 'vitest';
import { fenceOffences, pageOffences, sourceFiles } from '../../scripts/fences.ts';

const files = sourceFiles(fileURLToPath(new URL('../../src', import.meta.url)));

it('no import crosses a fence between rooms', () => {
  expect(files.flatMap(({ imports }) => imports).length).toBeGreaterThan(200);
  expect(fenceOffences(files)).toEqual([]);
});

it.each([
  ['auth/bearer.ts', 'upstream/slots.ts', 'rooms import the kernel and not each other'],
  ['config/schema.ts', 'auth/authenticate.ts', 'rooms import the kernel and not each other'],
  ['workers/worker.ts', 'upstream/slots.ts', 'rooms import the kernel and not each other'],
  ['kernel/clock.ts', 'auth/bearer.ts', 'the kernel imports only Node and itself'],
  ['kernel/clock.ts', 'zod', 'the kernel imports only Node and itself'],
  ['kernel/redis-options.ts', 'express', 'the kernel imports only Node and itself'],
  ['idempotency/engine.ts', 'express', 'the engine knows no HTTP server, database or package'],
  ['idempotency/engine.ts', 'node:http', 'the engine knows no HTTP server, database or package'],
  [
    ...['idempotency/engine.ts', 'idempotency/stores/sqlite/sqlite-store.ts'],
    'the engine knows no HTTP server, database or package',
  ],
  ['gateway/app.ts', 'undici', 'undici is imported by other rooms only'],
  ['idempotency/http/key.ts', 'ioredis/built/utils', 'ioredis is imported by other rooms only'],
  [
    'auth/redis/key-list.ts',
    'idempotency/stores/redis/client.ts',
    'rooms import the kernel and not each other',
  ],
  ['auth/bearer.ts', 'kernel/clock.ts', undefined],
  ['config/schema.ts', 'auth/options.ts', undefined],
  ['upstream/executor.ts', 'undici', undefined],
  ['gateway/app.ts', 'auth/bearer.ts', undefined],
] as const)('%s importing %s: %s', (path, to, why) => {
  const found = fenceOffences([...files, { path, imports: [to] }]);
  expect(found).toEqual(why ? [`src/${path} imports ${to}: ${why}`] : []);
});

it('the console’s page contains nothing of the gateway', () => {
  const page = sourceFiles(fileURLToPath(new URL('../../console', import.meta.url)));
  expect(page.length).toBeGreaterThan(10);
  expect(pageOffences(page)).toEqual([]);
  const strange = {
    path: 'api.ts',
    imports: ['../src/kernel/problem.ts', 'axe-core', 'words.ts', 'preact'],
  };
  expect(pageOffences([...page, strange])).toHaveLength(2);
});
