import type { CopySide } from '../../src/idempotency/copy/copy-side.ts';
import { RedisCopySide } from '../../src/idempotency/stores/redis/copy-side.ts';
import { SqliteCopySide } from '../../src/idempotency/stores/sqlite/copy-side.ts';
import { systemClock } from '../../src/kernel/clock.ts';
import type { StorePlace } from './open-store.ts';

/** The store of a place as the source or the destination of a copy. */
export async function openSide(place: StorePlace): Promise<CopySide> {
  if (place.kind === 'sqlite') return await SqliteCopySide.open({ path: place.path, clock: systemClock });
  const { url, prefix, lockNodes = [] } = place;
  return await RedisCopySide.open({
    ...{ location: { url }, prefix, lockNodes, replicas: 0, timeoutMs: 10_000 },
    ...{ connectTimeoutMs: 5000, clock: systemClock },
  });
}
