import { randomUUID } from 'node:crypto';
import { startRedis } from '../support/redis-server.ts';
import { storeContract } from './store-contract.ts';

const server = await startRedis();

storeContract({
  name: 'redis',
  secondBegin: 'ok',
  place: () => ({ kind: 'redis', url: server.url, prefix: randomUUID() }),
  rewrite: async (place, scope, change) => {
    if (place.kind !== 'redis') throw new TypeError('not a redis place');
    const key = `${place.prefix}:{${scope}}`;
    const record = await server.admin.getBuffer(key);
    if (!record) throw new Error('no record stands there');
    await server.admin.set(key, change(record), 'KEEPTTL');
  },
});
