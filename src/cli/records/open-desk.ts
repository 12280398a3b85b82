import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { loadConfig } from '../../config/load.ts';
import type { Config } from '../../config/schema.ts';
import { Desk } from '../../doubts/desk.ts';
import type { RecordsAnswer, Refusal, RefusalReason } from '../../doubts/record-view.ts';
import { isFileOfApplication, openLedger } from '../../ledger/open-store.ts';
import { LAYER, LAYER_RULE, recordIdOf } from '../../ledger/record-id.ts';
import { systemClock } from '../../lib/clock.ts';
import { Exit, required, TEXT, type Terminal } from '../arguments.ts';

/** Opens only the store of the configuration, with a desk on it, and closes it after `work`. */
export async function withDesk<T>(
  configFile: string,
  { env }: Terminal,
  work: (desk: Desk) => Promise<T>,
): Promise<T> {
  const config = loadConfig(configFile, env);
  refuseMissingStore(config);
  const { leaseMs } = config.lock;
  const { maxStoredBytes, layer } = config.idempotency;
  const store = await openLedger(config, systemClock, { mayBeFile: true });
  try {
    return await work(
      new Desk(store, { layer, leaseMs, maxStoredBytes, clock: systemClock, source: 'command_line' }),
    );
  } finally {
    await store.close();
  }
}

/** Refuses a path without a store: SQLite would create an empty one, and the command would report that nothing is in doubt. */
export function refuseMissingStore({ store }: Config): void {
  if (store.kind !== 'sqlite' || isFileOfApplication(store.path)) return;
  if (!existsSync(join(store.path, 'records.db')))
    throw new Exit(`there is no store in ${store.path}: no gateway has run with it`, 69);
}

/** Unwraps an answer of the desk. @throws {Exit} if it is a refusal */
export async function found<Value>(asked: Promise<RecordsAnswer<Value>>): Promise<Value> {
  const answer = await asked;
  if (answer.kind === 'refused') throw refusalOf(answer);
  return answer.value;
}

const EXIT_CODES = {
  invalid: 64,
  absent: 1,
  ambiguous: 1,
  no_body: 1,
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

export const RECORD_OPTIONS = { 'record-id': TEXT, merchant: TEXT, key: TEXT, layer: TEXT, config: TEXT };

/** @throws {Exit} 64 unless the options name one record, in one way */
export function namedRecordId(
  { 'record-id': recordId, merchant, key, ...options }: { [Name in keyof typeof RECORD_OPTIONS]?: string },
  usage: string,
  terminal: Terminal,
): string {
  const { layer } = options;
  if (recordId !== undefined && [merchant, key, layer].every((option) => option === undefined))
    return recordId;
  if (recordId === undefined && merchant !== undefined && key !== undefined)
    return recordIdOf(layerOf(options, usage, terminal), merchant, key);
  throw new Exit(
    `name one record: --record-id, or --merchant and --key, and --layer if needed\n\n${usage}`,
    64,
  );
}

/** The largest idempotency.maxStoredBytes that the configuration allows. */
const MAX_FILE_BYTES = 67_108_864;

/** The content of the file that an option names. @throws {Exit} 64 if it cannot be read, or is too large to be stored */
export function readNamed(file: string, option: string): Buffer {
  try {
    if (statSync(file).size <= MAX_FILE_BYTES) return readFileSync(file);
  } catch (error) {
    throw new Exit(`--${option} ${file} cannot be read: ${(error as NodeJS.ErrnoException).code}`, 64);
  }
  throw new Exit(`--${option} ${file} is too large`, 64);
}

/** The layer of the records that are named by merchant and key. @throws {Exit} 64 if it is not the name of one */
export function layerOf(
  { layer, config }: { layer?: string; config?: string },
  usage: string,
  { env }: Terminal,
): string {
  if (layer === undefined) return loadConfig(required(config, 'config', usage), env).idempotency.layer;
  if (!LAYER.test(layer)) throw new Exit(`--layer ${LAYER_RULE}\n\n${usage}`, 64);
  return layer;
}
