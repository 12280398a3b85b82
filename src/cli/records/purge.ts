import { userInfo } from 'node:os';
import { checkNote } from '../../idempotency/doubt/desk.ts';
import { type PurgeCounts, purgeMerchant } from '../../idempotency/doubt/purge.ts';
import type { ListedRecord } from '../../idempotency/store.ts';
import { Exit, readArguments, required } from '../arguments.ts';
import { printable, table } from '../table.ts';
import { withStore } from './desk.ts';

const USAGE = `oncegate records purge --config FILE --merchant M --reason TEXT [--by NAME] [--dry-run]

Removes the stored responses of a merchant, headers and bodies, from all of its completed records. No key can be executed again:
retries get 409 response_not_stored. Merchant, operation, key, status and times stay, and so does the audit trail.
Records that are executing or in doubt are left, and listed: they may still get a response. Purge again when they are completed.
The gateways may run. If the command is interrupted, run it again.

  --merchant M    the merchant code
  --reason TEXT   why; kept in the audit trail of each record
  --by NAME       who; kept in the audit trail (default: the user of this process)
  --dry-run       only counts and lists, and writes nothing

Exit codes: 0 all were purged, or would be; 1 records were left, or the merchant has none; 64 wrong arguments; 69 the store cannot
be used, and what was purged until then stays purged; 78 the configuration is wrong.
`;

const OPTIONS = {
  config: { type: 'string' },
  merchant: { type: 'string' },
  reason: { type: 'string' },
  by: { type: 'string' },
  'dry-run': { type: 'boolean' },
} as const;

const PROGRESS_EVERY_MS = 2000;

export async function purge(args: string[]): Promise<void> {
  const options = readArguments(args, OPTIONS, USAGE);
  if (!options) return;
  const config = required(options.config, 'config', USAGE);
  const merchant = required(options.merchant, 'merchant', USAGE);
  const note = {
    by: (options.by ?? userInfo().username).trim(),
    reason: required(options.reason, 'reason', USAGE).trim(),
  };
  const mistake = checkNote(note);
  if (mistake) throw new Exit(mistake, 64);
  const isDryRun = options['dry-run'] === true;
  let toldMs = Number.POSITIVE_INFINITY;
  const onProgress = ({ examined, purged }: PurgeCounts) => {
    if (performance.now() - toldMs < PROGRESS_EVERY_MS) return;
    toldMs = performance.now();
    process.stderr.write(`${examined} records examined, ${purged} responses ${doneWord(isDryRun)}\n`);
  };
  const counts = await withStore(config, (store) => {
    toldMs = performance.now();
    return purgeMerchant(store, { merchant, note, isDryRun, onLeft, onProgress });
  });
  process.stdout.write(tableOf(counts, isDryRun));
  const { purged, withoutResponse, open, unreadable } = counts;
  if (open + unreadable > 0) throw new Exit(`${open + unreadable} records were left`, 1);
  if (purged + withoutResponse === 0) throw new Exit(`there are no records of ${printable(merchant)}`, 1);
}

const doneWord = (isDryRun: boolean): string => (isDryRun ? 'would be removed' : 'removed');

function tableOf({ purged, withoutResponse, open, unreadable }: PurgeCounts, isDryRun: boolean): string {
  return table(
    ['RECORDS', 'WHAT'],
    [
      [`${purged}`, `responses ${doneWord(isDryRun)}`],
      [`${withoutResponse}`, 'completed, had no response'],
      [`${open}`, 'left: executing or in doubt'],
      [`${unreadable}`, 'left: cannot be read, so of any merchant'],
    ],
  );
}

function onLeft(record: ListedRecord): void {
  const what =
    record.unreadable === undefined
      ? `${record.state}, ${record.operation}, key ${record.key}`
      : `cannot be read: ${record.unreadable}`;
  process.stdout.write(`left ${record.scope}  ${printable(what)}\n`);
}
