import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { loadConfig } from '../../config/load.ts';
import type { Config } from '../../config/schema.ts';
import { Desk, type DeskAnswer, type DeskQuestion, type Refusal } from '../../idempotency/doubt/desk.ts';
import { openStore } from '../../idempotency/stores/open-store.ts';
import { systemClock } from '../../kernel/clock.ts';
import { Exit } from '../exit.ts';

/** Opens the configured store and nothing else, and closes it whatever happens. */
export async function withDesk<T>(configFile: string, work: (desk: Desk) => Promise<T>): Promise<T> {
  const config = loadConfig(configFile, process.env);
  refuseMissing(config);
  const store = await openStore(config, systemClock);
  const { leaseMs } = config.lock;
  try {
    return await work(new Desk(store, { leaseMs, maxStoredBytes: config.idempotency.maxStoredBytes }));
  } finally {
    await store.close();
  }
}

/** A mistyped path would be an empty store, in which nothing is in doubt. */
function refuseMissing({ store }: Config): void {
  if (store.kind !== 'sqlite') return;
  // The store itself says what to do about one of an earlier version.
  const known = ['records.db', 'data.mdb'];
  if (!known.some((file) => existsSync(join(store.path, file))))
    throw new Exit(`there is no store in ${store.path}: no gateway has run with it`, 69);
}

/** @throws {Exit} with the desk's refusal */
export async function asked<T>(desk: Desk, question: DeskQuestion): Promise<T> {
  const answer: DeskAnswer = await desk.answer(question);
  if (answer.kind === 'refused') throw refusalOf(answer);
  return answer.value as T;
}

const codes = { invalid: 64, absent: 1, alive: 1, changed: 1, unavailable: 69 } as const;

function refusalOf({ why, detail, record }: Refusal): Exit {
  const { state, merchant, operation, changedAt } = record ?? {};
  const now = record ? `\nnow: ${state} since ${changedAt}, ${operation} of ${merchant}` : '';
  return new Exit(`${detail}${now}`, codes[why]);
}
