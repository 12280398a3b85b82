import { statSync } from 'node:fs';
import { join } from 'node:path';
import { launchRedis, type RedisServer } from '../test/support/redis-process.ts';
import { load } from './load.ts';
import { end, ownBytes, pinned, rssBytes } from './processes.ts';
import type { MemoryRun } from './results.ts';
import { type Place, SECRET, type System, startOncegate } from './systems.ts';

const A_STEP_S = 10;

/** Sends new keys up to a number, and measures the memory of the gateway's process and the bytes of its store for each key. */
export async function memory(
  store: 'redis' | 'sqlite',
  place: Place,
  keysWanted: number,
  withinMs: number,
  seed: string,
  report: (line: string) => void,
): Promise<MemoryRun> {
  const server = store === 'redis' ? await launchRedis({ args: ['--appendfsync', 'everysec'] }) : undefined;
  if (server) pinned(server.pid);
  const dataPath = join(place.root, `memory-${seed}`);
  const system = await startOncegate(store, { ...place, redisUrl: server?.url ?? '' }, { dataPath });
  try {
    const emptyBytes = await storeBytes(server, dataPath);
    const samples: MemoryRun['samples'] = [];
    const endMs = performance.now() + withinMs;
    let keys = 0;
    while (keys < keysWanted && performance.now() < endMs) {
      keys += (await load(system, 'first', A_STEP_S, `${seed}-memory-${store}-${samples.length}`)).requests;
      const pid = system.process.pid as number;
      const sample = { keys, rssBytes: rssBytes(pid), ownBytes: ownBytes(pid) };
      samples.push(sample);
      const [rss, own] = [sample.rssBytes, sample.ownBytes].map((bytes) => Math.round(bytes / 1024 / 1024));
      report(`memory, ${store}: ${keys} keys, RSS ${rss} MiB, without file pages ${own}`);
    }
    const answerBytes = await answerSize(system, seed);
    const perRecord = ((await storeBytes(server, dataPath)) - emptyBytes) / keys;
    return { store, samples, answerBytes, overheadBytes: Math.round(perRecord - answerBytes) };
  } finally {
    await end(system.process);
    await server?.stop();
  }
}

/** The size of the store: memory of Redis, the file of SQLite. */
async function storeBytes(server: RedisServer | undefined, dataPath: string): Promise<number> {
  if (!server) return statSync(join(dataPath, 'records.db')).size;
  return Number(/used_memory:(\d+)/.exec(await server.admin.info('memory'))?.[1]);
}

/** Bytes of header fields and body of a replayed answer, without what the gateway adds to it. */
export async function answerSize({ url }: System, seed: string): Promise<number> {
  const ask = () =>
    fetch(`${url}/v1/index.php`, {
      method: 'POST',
      headers: {
        ...{ authorization: `Bearer ${SECRET}`, 'content-type': 'application/json' },
        'x-service-idempotency': `${seed}-answer`,
      },
      body: JSON.stringify({ action: 'withdraw', amount: 1, bank_code: '058', account_number: '0123456789' }),
    });
  await (await ask()).arrayBuffer();
  const answer = await ask();
  const own = new Set([
    ...['x-request-id', 'idempotent-replayed', 'idempotent-original-request-id'],
    ...['connection', 'keep-alive', 'transfer-encoding'],
  ]);
  const headers = [...answer.headers].filter(([name]) => !own.has(name));
  const body = await answer.arrayBuffer();
  return headers.reduce((sum, [name, value]) => sum + name.length + value.length, body.byteLength);
}
