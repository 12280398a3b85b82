import { atEndOfFile } from './at-end-of-file.ts';
import { launchRedis, type RedisServer, type RedisServerOptions } from './redis-process.ts';

export type { RedisServer, RedisServerOptions } from './redis-process.ts';

const running = new Set<RedisServer>();
atEndOfFile(async () => {
  await Promise.all([...running].map((server) => server.stop()));
  running.clear();
});

/** A real redis-server on a free loopback port with its own folder; stopped after the test file. */
export async function startRedis(options: RedisServerOptions = {}): Promise<RedisServer> {
  const server = await launchRedis(options);
  running.add(server);
  return server;
}

/** Makes it like a Redis that comes back without its file: it is empty, and all its clients connect again. */
export const emptied = ({ admin }: RedisServer) =>
  admin.multi().flushall().call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes').exec();
