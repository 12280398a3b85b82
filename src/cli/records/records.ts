import type { Desk } from '../../idempotency/doubt/desk.ts';
import type { RecordsPage } from '../../kernel/records.ts';
import { Exit, readArguments, required } from '../arguments.ts';
import { table } from '../table.ts';
import { ask, withDesk } from './desk.ts';
import { resolve } from './resolve.ts';
import { resolveMany } from './resolve-many.ts';
import { show } from './show.ts';

const USAGE = `oncegate records: list and show records, and resolve keys in doubt.

  oncegate records list --config FILE [--in-doubt] [--limit N] [--json]
  oncegate records show --config FILE (--scope S | --merchant M --key K) [--body] [--json]
  oncegate records resolve --config FILE (--scope S | --merchant M --key K) --as completed|released --reason TEXT
  oncegate records resolve-many --config FILE --from FILE --reason TEXT [--dry-run]

They open only the store of the configuration. With SQLite, run them on the machine of the gateway. The gateway may run.
Each takes --help. Exit codes: 0 done, 1 refused (by resolve: and nothing was written), 64 wrong arguments, 69 the store cannot be used,
78 the configuration is wrong.
`;

const ACTIONS: Record<string, (args: string[]) => Promise<void>> = {
  ...{ list, show, resolve },
  'resolve-many': resolveMany,
};

export async function records([action = '', ...args]: string[]): Promise<void> {
  if (action === '--help' || action === '-h') {
    process.stdout.write(USAGE);
    return;
  }
  const act = Object.hasOwn(ACTIONS, action) ? ACTIONS[action] : undefined;
  if (!act)
    throw new Exit(
      `the records command needs an action: list, show, resolve or resolve-many\n\n${USAGE}`,
      64,
    );
  await act(args);
}

const LIST_USAGE = `oncegate records list --config FILE [--in-doubt] [--limit N] [--cursor C] [--json]

  --in-doubt    only records that an operator should look at: in doubt, executing without an owner, unreadable
  --limit N     at most N records (default 100)
  --cursor C    continue an earlier listing
  --json        print JSON
`;

const LIST_OPTIONS = {
  config: { type: 'string' },
  'in-doubt': { type: 'boolean' },
  limit: { type: 'string' },
  cursor: { type: 'string' },
  json: { type: 'boolean' },
} as const;

/** The most records that the desk returns at once. */
const PAGE = 1000;

async function list(args: string[]): Promise<void> {
  const options = readArguments(args, LIST_OPTIONS, LIST_USAGE);
  if (!options) return;
  const limit = limitOf(options.limit ?? '100');
  const inDoubt = options['in-doubt'] ?? false;
  const config = required(options.config, 'config', LIST_USAGE);
  const listing = await withDesk(config, (desk) => listUpTo(limit, desk, inDoubt, options.cursor));
  process.stdout.write(options.json ? `${JSON.stringify(listing, null, 2)}\n` : textOf(listing, inDoubt));
}

async function listUpTo(limit: number, desk: Desk, inDoubt: boolean, from?: string): Promise<RecordsPage> {
  const found: RecordsPage['records'] = [];
  let cursor = from;
  do {
    const pageLimit = Math.min(limit - found.length, PAGE);
    const page = await ask<RecordsPage>(desk, { kind: 'list', inDoubt, limit: pageLimit, cursor });
    found.push(...page.records);
    cursor = page.cursor;
  } while (cursor !== undefined && found.length < limit);
  return { records: found, ...(cursor === undefined ? {} : { cursor }) };
}

function textOf({ records: found, cursor }: RecordsPage, inDoubt: boolean): string {
  const more = cursor === undefined ? '' : `There may be more: --cursor ${cursor}\n`;
  if (found.length === 0) return more || (inDoubt ? 'Nothing is in doubt.\n' : 'There are no records.\n');
  const rows = found.map(
    ({ state, ownerGone, changedAt, merchant, operation, key, requestId, scope, reason }) => [
      ownerGone ? `${state}, owner gone` : state,
      ...(reason === undefined ? [changedAt, merchant, operation, key] : ['', '', '', reason]),
      requestId,
      scope,
    ],
  );
  return table(['STATE', 'SINCE', 'MERCHANT', 'OPERATION', 'KEY', 'REQUEST ID', 'SCOPE'], rows) + more;
}

function limitOf(text: string): number {
  const limit = Number(text);
  if (/^\d{1,7}$/.test(text) && limit > 0) return limit;
  throw new Exit(`--limit ${JSON.stringify(text)} is not a number of records\n\n${LIST_USAGE}`, 64);
}
