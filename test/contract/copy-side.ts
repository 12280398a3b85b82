import { systemClock } from '../../src/lib/clock.ts';
import type { CopySide } from '../../src/store/copy-side.ts';
import { SqliteCopySide } from '../../src/store/sqlite/copy-side.ts';
import type { StorePlace } from '../support/open-store.ts';

/** The store of a place as the source or the destination of a copy. */
export async function openSide(place: StorePlace): Promise<CopySide> {
  if (place.kind === 'sqlite') return await SqliteCopySide.open({ path: place.path, clock: systemClock });
  throw new Error('records in Redis cannot be copied yet');
}
