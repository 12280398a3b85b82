import { Redis } from 'ioredis';
import { onTestFinished } from 'vitest';
import type { ConfigInput } from './config.ts';

/** One client of the test for each cluster node that this configuration names. */
export function clusterNodes(store: ConfigInput['store']): Redis[] {
  const urls = store?.kind === 'redis' ? (store.cluster ?? []) : [];
  return urls.map((url) => {
    const node = new Redis(url, { retryStrategy: () => 25 }).on('error', () => {});
    onTestFinished(() => node.disconnect());
    return node;
  });
}
