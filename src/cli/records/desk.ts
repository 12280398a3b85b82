import { existsSync } from 'node:fs';
import { join } from 'node:path';
import { loadConfig } from '../../config/load.ts';
import type { Config } from '../../config/schema.ts';
import { Desk } from '../../doubts/desk.ts';
import type { RecordsQuestion, Refusal, RefusalReason } from '../../doubts/records.ts';
import { scopeOf } from '../../ledger/record-id.ts';
import { systemClock } from '../../lib/clock.ts';
import { openStore } from '../../store/open-store.ts';
import { Exit, type Terminal } from '../arguments.ts';

/** Opens only the store of the configuration, with a desk on it, and closes it after `work`. */
export async function withDesk<T>(
  configFile: string,
  { env }: Terminal,
  work: (desk: Desk) => Promise<T>,
): Promise<T> {
  const config = loadConfig(configFile, env);
  refuseMissingStore(config);
  const { leaseMs } = config.lock;
  const { maxStoredBytes } = config.idempotency;
  const store = await openStore(config, systemClock);
  try {
    return await work(
      new Desk(store, { leaseMs, maxStoredBytes, clock: systemClock, source: 'command_line' }),
    );
  } finally {
    await store.close();
  }
}

/** At a mistyped path, SQLite would create an empty store, and the command would report that nothing is in doubt. */
export function refuseMissingStore({ store }: Config): void {
  if (store.kind !== 'sqlite') return;
  if (!existsSync(join(store.path, 'records.db')))
    throw new Exit(`there is no store in ${store.path}: no gateway has run with it`, 69);
}

/** Asks, and unwraps the answer. @throws {Exit} if the desk refuses */
export async function ask<T>(desk: Desk, question: RecordsQuestion): Promise<T> {
  const answer = await desk.answer(question);
  if (answer.kind === 'refused') throw refusalOf(answer);
  return answer.value as T;
}

const EXIT_CODES = {
  invalid: 64,
  absent: 1,
  alive: 1,
  changed: 1,
  unreadable: 1,
  unavailable: 69,
} as const satisfies Record<RefusalReason, number>;

function refusalOf({ why, detail, record }: Refusal): Exit {
  const { state, merchant, operation, changedAt } = record ?? {};
  const now = record ? `\nnow: ${state} since ${changedAt}, ${operation} of ${merchant}` : '';
  return new Exit(`${detail}${now}`, EXIT_CODES[why]);
}

/** The options that name one record. */
export const RECORD_OPTIONS = {
  scope: { type: 'string' },
  merchant: { type: 'string' },
  key: { type: 'string' },
} as const;

/** @throws {Exit} 64 unless the options name one record, in one way */
export function namedScope(
  { scope, merchant, key }: { scope?: string; merchant?: string; key?: string },
  usage: string,
): string {
  if (scope !== undefined && merchant === undefined && key === undefined) return scope;
  if (scope === undefined && merchant !== undefined && key !== undefined) return scopeOf(merchant, key);
  throw new Exit(`name one record: --scope, or --merchant and --key\n\n${usage}`, 64);
}
