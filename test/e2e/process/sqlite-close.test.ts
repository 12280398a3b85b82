import { setImmediate as nextTurn } from 'node:timers/promises';
import { expect, it } from 'vitest';
import { newFolder } from '../../support/command.ts';
import { openStore } from '../../support/open-store.ts';
import { newRequest } from '../../support/requests.ts';

it('a SQLite store answers calls made before close, and refuses calls made after it', async () => {
  const path = newFolder();
  const store = await openStore({ kind: 'sqlite', path });
  const requests = Array.from({ length: 20 }, () => newRequest());
  const starts = Promise.all(requests.map((request) => store.start(request)));
  await nextTurn();
  const closing = store.close();
  expect(await store.health()).toMatchObject({ ok: false });
  await expect(store.start(newRequest())).rejects.toMatchObject({ name: 'StoreUnavailable' });
  await expect(store.get(newRequest().scope)).rejects.toMatchObject({ name: 'StoreUnavailable' });
  await closing;
  expect((await starts).map(({ kind }) => kind)).toEqual(Array(20).fill('started'));
  expect(await store.health()).toMatchObject({ ok: false });

  const again = await openStore({ kind: 'sqlite', path });
  const records = await Promise.all(requests.map(({ scope }) => again.get(scope)));
  await again.close();
  expect(records.map((record) => record?.state)).toEqual(Array(20).fill('executing'));
});
