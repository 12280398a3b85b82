import { pause } from '../lib/clock.ts';
import type { ResolutionNote } from '../store/doubts.ts';
import { StoreUnavailable } from '../store/types.ts';
import { readNoted, writeNoted } from './identity-file.ts';
import { differenceOf, isOlder, LOOK_EVERY_MS, type StoreWatchOptions } from './store-watch.ts';

/**
 * Accepts a store that forgot keys, so that its gateways start new keys again.
 *
 * @returns what was accepted, if there was something to accept
 * @throws {Error} if the file cannot be read or written
 * @throws {StoreUnavailable} if the store does not answer, or not all of it
 */
export async function acceptStore(
  {
    file,
    store,
    mode,
    refuses,
    clock,
  }: Pick<StoreWatchOptions, 'file' | 'store' | 'mode' | 'refuses' | 'clock'>,
  { by, reason }: ResolutionNote,
): Promise<string | undefined> {
  const noted = await readNoted(file);
  const found = await store.readIdentity(mode);
  const difference = differenceOf(noted.mark, found, 0);
  const what = noted.changed?.what ?? difference;
  if (what === undefined) return undefined;
  // An older store gets a new id, and so does a cluster that has lost a master's records: the newer store, if it is put back later, lacks what
  // is executed from now on. An emptied store gets one, so that it is noticed if it is emptied again. Any other store keeps its id, because
  // other gateways know it, and would refuse or warn about a new one. Such a store is the right one, put back after a wrong one, or one
  // that a gateway that does not refuse uses already. What was noted counts, and what is there now.
  const hasLost = found === undefined || isOlder(what) || isOlder(difference);
  const replaced = refuses && hasLost ? noted.mark.id : undefined;
  const isNamed = found && found.id !== replaced;
  // A visit writes the identity to every master, which would hide that one has lost it.
  if (!isNamed && found?.unread)
    throw new StoreUnavailable('not every master has shown the identity: repeat it');
  const { id, count } = isNamed ? found : await store.visit(mode, replaced);
  const at = new Date(clock.wallMs()).toISOString();
  const accepted = { at, by, reason, what };
  for (;;) {
    await writeNoted(file, { mark: { id, count }, seenAt: at, accepted });
    // A gateway that was about to note its refusal may write over it. Another operator's acceptance serves as well.
    await pause(clock, 2 * LOOK_EVERY_MS);
    const there = await readNoted(file);
    if (there.accepted && there.accepted.at !== noted.accepted?.at) return what;
  }
}
