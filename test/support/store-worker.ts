import { createInterface } from 'node:readline';
import type { Store } from '../../src/idempotency/store.ts';
import { openEnvironment } from '../../src/idempotency/stores/lmdb/environment.ts';
import { openStore, type StorePlace } from './open-store.ts';
import { newRequest, paid } from './requests.ts';

/** What a process of its own is to do with a store. */
export type Work =
  /** Claims `keys` at the word `go`, and tells which it won. */
  | { kind: 'race'; keys: string[] }
  /** Claims, begins and settles one key after the other on each lane, telling each answer, until it is killed. */
  | { kind: 'ledger'; lanes: number }
  /** Opens and closes the store, over and over. */
  | { kind: 'reopen' }
  /** Stops within a commit of LMDB's, until somebody lets it go on. */
  | { kind: 'stop_within_commit' };

async function race(store: Store, keys: string[], go: Promise<unknown>): Promise<void> {
  say('ready');
  await go;
  const claims = await Promise.all(
    keys.map(async (key) => ({ key, claim: await store.claim(newRequest({ key })) })),
  );
  say(
    'won',
    claims.filter(({ claim }) => claim.kind === 'claimed').map(({ key }) => key),
  );
}

async function ledger(store: Store, lane: number): Promise<void> {
  for (let number = 0; ; number++) {
    const key = `${lane}-${number}`;
    const request = newRequest({ key });
    const claim = await store.claim(request);
    say(claim.kind, key);
    if (claim.kind !== 'claimed') continue;
    if (number % 3 === 0) continue;
    say(`begin ${await store.begin(request)}`, key);
    if (number % 3 === 1) continue;
    say(`settle ${await store.settle(request, paid(key))}`, key);
  }
}

async function reopen(place: StorePlace): Promise<never> {
  for (;;) {
    const store = await openStore(place);
    say('opened');
    await store.close();
  }
}

async function stopWithinCommit({ path }: StorePlace & { kind: 'lmdb' }): Promise<void> {
  const { records, close } = await openEnvironment(path);
  records.transactionSync(() => {
    say('stops');
    process.kill(process.pid, 'SIGSTOP');
  });
  await close();
}

/** Standard output is a pipe, and Node writes to pipes at once: what was said before a kill has arrived. */
function say(word: string, about: unknown = null): void {
  process.stdout.write(`${JSON.stringify([word, about])}\n`);
}

const { place, work } = JSON.parse(process.argv[2] ?? '') as { place: StorePlace; work: Work };
const commands = createInterface(process.stdin);
const go = new Promise((resolve) => commands.once('line', resolve));
// The parent is gone.
commands.once('close', () => process.exit());

if (work.kind === 'reopen') await reopen(place);
if (work.kind === 'stop_within_commit') {
  await stopWithinCommit(place as StorePlace & { kind: 'lmdb' });
  process.exit();
}
const store = await openStore(place);
if (work.kind === 'race') await race(store, work.keys, go);
else if (work.kind === 'ledger')
  await Promise.all(Array.from({ length: work.lanes }, (_, lane) => ledger(store, lane)));
await store.close();
process.exit();
