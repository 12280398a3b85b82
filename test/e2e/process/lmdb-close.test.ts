import { expect, it } from 'vitest';
import { newFolder } from '../../support/command.ts';
import { openStore } from '../../support/open-store.ts';
import { newRequest } from '../../support/requests.ts';

it('an lmdb store that is asked while it closes says so: a read at that moment would end the process', async () => {
  const store = await openStore({ kind: 'lmdb', path: newFolder() });
  const claims = Promise.allSettled(Array.from({ length: 20 }, () => store.claim(newRequest())));
  const closing = store.close();
  expect(await store.health()).toMatchObject({ ok: false });
  await expect(store.claim(newRequest())).rejects.toMatchObject({ name: 'StoreUnavailable' });
  await expect(store.get(newRequest().scope)).rejects.toMatchObject({ name: 'StoreUnavailable' });
  await closing;
  expect((await claims).map(({ status }) => status)).toEqual(Array(20).fill('fulfilled'));
  expect(await store.health()).toMatchObject({ ok: false });
});
