import type { Desk } from '../../doubts/desk.ts';
import type { RecordsPage, RecordView } from '../../doubts/record-view.ts';
import { commandOf, Exit, FLAG, readArguments, required, TEXT, type Terminal } from '../arguments.ts';
import { table } from '../table.ts';
import { copy } from './copy.ts';
import { found, withDesk } from './open-desk.ts';
import { resolve } from './resolve.ts';
import { resolveMany } from './resolve-many.ts';
import { show } from './show.ts';

const USAGE = `oncegate records: list and show records, resolve keys in doubt, and move all records to another store.

  oncegate records list --config FILE [--in-doubt] [--limit N] [--json | --lines]
  oncegate records show --config FILE (--record-id ID | --merchant M --key K [--layer L] | --request-id R [--all]) [--body] [--json]
  oncegate records resolve --config FILE (--record-id ID | --merchant M --key K [--layer L]) --execution E --as completed|released --reason TEXT
  oncegate records resolve-many --config FILE --from FILE --reason TEXT [--layer L] [--dry-run]
  oncegate records copy --from CONFIG --to CONFIG [--although-alive | --undo]

They open only the stores of the configurations. With SQLite, run them on the machine of the gateway. The gateway may run.
Each takes --help. Exit codes: 0 done, 1 refused (by resolve: and nothing was written), 64 wrong arguments, 69 the store cannot be used,
78 the configuration is wrong.
`;

const ACTIONS = { list, show, resolve, 'resolve-many': resolveMany, copy };

export const records = commandOf('records', ACTIONS, USAGE);

const LIST_USAGE = `oncegate records list --config FILE [--in-doubt] [--limit N] [--cursor C] [--json | --lines]

Lists records, the oldest of those that it lists first.

  --in-doubt    only records that an operator should look at: in doubt, executing without an owner, unreadable
  --limit N     at most N records (default 100)
  --cursor C    continue an earlier listing
  --json        print JSON
  --lines       print a line of JSON for each record, for the file of records resolve-many
`;

const LIST_OPTIONS = { config: TEXT, 'in-doubt': FLAG, limit: TEXT, cursor: TEXT, json: FLAG, lines: FLAG };

/** The most records that the desk returns at once. */
const PAGE = 1000;

async function list(args: string[], terminal: Terminal): Promise<void> {
  const options = readArguments(args, LIST_OPTIONS, LIST_USAGE);
  const limit = limitOf(options.limit ?? '100');
  const inDoubt = options['in-doubt'] ?? false;
  const config = required(options.config, 'config', LIST_USAGE);
  const listing = await withDesk(config, terminal, (desk) => listUpTo(limit, desk, inDoubt, options.cursor));
  if (options.lines)
    terminal.stdout.write(listing.records.map((record) => `${JSON.stringify(record)}\n`).join(''));
  else
    terminal.stdout.write(options.json ? `${JSON.stringify(listing, null, 2)}\n` : textOf(listing, inDoubt));
  // Output that goes to a file does not show that there is more.
  if ((options.json || options.lines) && listing.cursor !== undefined)
    terminal.stderr.write(`oncegate: there may be more than --limit ${limit} records\n`);
}

type Listing = Omit<RecordsPage, 'read'>;

async function listUpTo(limit: number, desk: Desk, inDoubt: boolean, from?: string): Promise<Listing> {
  // The store may list a record twice if it changes meanwhile.
  const listed = new Map<string, RecordView>();
  let cursor = from;
  do {
    const pageLimit = Math.min(limit - listed.size, PAGE);
    const page = await found(desk.list({ inDoubt, limit: pageLimit, cursor }));
    for (const record of page.records) listed.set(record.recordId, record);
    cursor = page.cursor;
  } while (cursor !== undefined && listed.size < limit);
  // Redis lists records in the order of their hashes, not of their times.
  const records = [...listed.values()].sort((a, b) => sinceOf(a) - sinceOf(b));
  return { records, ...(cursor === undefined ? {} : { cursor }) };
}

/** A record that cannot be read has no time, and comes last. */
const sinceOf = ({ changedAt }: RecordView): number =>
  changedAt === undefined ? Number.MAX_VALUE : Date.parse(changedAt);

function textOf({ records: listed, cursor }: Listing, inDoubt: boolean): string {
  const more = cursor === undefined ? '' : `There may be more: --cursor ${cursor}\n`;
  if (listed.length === 0) return more || (inDoubt ? 'Nothing is in doubt.\n' : 'There are no records.\n');
  const rows = listed.map(
    ({ state, ownerGone, changedAt, merchant, operation, key, requestId, recordId, reason }) => [
      ownerGone ? `${state}, owner gone` : state,
      ...(reason === undefined ? [changedAt, merchant, operation, key] : ['', '', '', reason]),
      requestId,
      recordId,
    ],
  );
  return table(['STATE', 'SINCE', 'MERCHANT', 'OPERATION', 'KEY', 'REQUEST ID', 'RECORD ID'], rows) + more;
}

function limitOf(text: string): number {
  const limit = Number(text);
  if (/^\d{1,7}$/.test(text) && limit > 0) return limit;
  throw new Exit(`--limit ${JSON.stringify(text)} is not a number of records\n\n${LIST_USAGE}`, 64);
}
