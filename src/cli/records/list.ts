import type { Desk } from '../../idempotency/doubt/desk.ts';
import type { RecordView } from '../../idempotency/doubt/desk-view.ts';
import { readArguments, required } from '../arguments.ts';
import { Exit } from '../exit.ts';
import { asked, withDesk } from './open-desk.ts';
import { table } from './table.ts';

const USAGE = `oncegate records list --config FILE [--in-doubt] [--limit N] [--cursor C] [--json]

  --in-doubt    only what needs an operator: in doubt, executing without an owner, unreadable
  --limit N     at most so many (default 100)
  --cursor C    go on where a listing ended
  --json        as JSON
`;

const OPTIONS = {
  config: { type: 'string' },
  'in-doubt': { type: 'boolean' },
  limit: { type: 'string' },
  cursor: { type: 'string' },
  json: { type: 'boolean' },
} as const;

const PAGE = 1000;

interface Page {
  records: RecordView[];
  cursor?: string;
}

export async function list(args: string[]): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  if (!options) return;
  const limit = limitOf(options.limit ?? '100');
  const inDoubt = options['in-doubt'] ?? false;
  const config = required(options.config, 'config', USAGE);
  const found = await withDesk(config, (desk) => pages(desk, inDoubt, limit, options.cursor));
  process.stdout.write(options.json ? `${JSON.stringify(found, null, 2)}\n` : tableOf(found, inDoubt));
}

/** Page after page, until there are enough. */
async function pages(desk: Desk, inDoubt: boolean, limit: number, from: string | undefined): Promise<Page> {
  const records: RecordView[] = [];
  let cursor = from;
  do {
    const question = {
      kind: 'list' as const,
      inDoubt,
      limit: Math.min(limit - records.length, PAGE),
      cursor,
    };
    const page = await asked<Page>(desk, question);
    records.push(...page.records);
    cursor = page.cursor;
  } while (cursor !== undefined && records.length < limit);
  return { records, ...(cursor === undefined ? {} : { cursor }) };
}

function tableOf({ records, cursor }: Page, inDoubt: boolean): string {
  const more = cursor === undefined ? '' : `There may be more: --cursor ${cursor}\n`;
  if (records.length === 0) return more || (inDoubt ? 'Nothing is in doubt.\n' : 'There are no records.\n');
  const rows = records.map(
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
  throw new Exit(`--limit ${JSON.stringify(text)} is not a number of records\n\n${USAGE}`, 64);
}
