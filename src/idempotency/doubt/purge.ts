import { setTimeout as sleep } from 'node:timers/promises';
import {
  type ListedRecord,
  type RecordHead,
  type ResolutionNote,
  type Store,
  StoreUnavailable,
  UnreadableRecord,
} from '../store.ts';

export interface PurgeOptions {
  merchant: string;
  note: ResolutionNote;
  /** Only counts, and writes nothing. */
  isDryRun: boolean;
  /** Called for each record that keeps what it holds: executing, in doubt, or unreadable. */
  onLeft(record: ListedRecord): void;
  /** Called after each page of records. */
  onProgress(counts: PurgeCounts): void;
}

/** Numbers of records. A record that changes during the purge may be counted twice. */
export interface PurgeCounts {
  /** Of all merchants. */
  examined: number;
  /** Their responses were removed; in a dry run: would be. */
  purged: number;
  /** Completed without a stored response, by an earlier purge or because the response was too large. */
  withoutResponse: number;
  /** Executing or in doubt. They may still get a response. */
  open: number;
  /** Of any merchant: a damaged record does not tell its merchant. */
  unreadable: number;
}

const RECORDS_PER_PAGE = 500;
/** So few that the payouts of the gateways, which share the store, hardly wait. */
const AT_ONCE = 16;
const ATTEMPTS = 5;
const RETRY_AFTER_MS = 200;

/**
 * Removes the stored responses of a merchant's completed records. The records become tombstones, so that no key can be
 * executed again. Gateways may run meanwhile: what was completed before the purge began is purged, or reported as left.
 *
 * @throws {StoreUnavailable} if the store does not answer. What was purged until then stays purged, and it may be run again
 */
export async function purgeMerchant(store: Store, options: PurgeOptions): Promise<PurgeCounts> {
  const { merchant, isDryRun, note, onLeft, onProgress } = options;
  const counts: PurgeCounts = { examined: 0, purged: 0, withoutResponse: 0, open: 0, unreadable: 0 };
  const leave = (record: ListedRecord): void => {
    counts[record.unreadable === undefined ? 'open' : 'unreadable']++;
    onLeft(record);
  };

  async function purge({ scope, token }: Candidate): Promise<void> {
    try {
      const answer = isDryRun ? 'ok' : await patiently(() => store.purge(scope, token, note));
      if (answer === 'ok') counts.purged++;
      else {
        const record = await patiently(() => store.get(scope));
        const hasResponse = record?.completion?.kind === 'response';
        // If there is none, it has expired.
        if (record) await handle({ ...record, scope, ownerGone: false, hasResponse });
      }
    } catch (error) {
      if (!(error instanceof UnreadableRecord)) throw error;
      leave({ scope, unreadable: error.message });
    }
  }

  async function handle(record: ListedRecord): Promise<void> {
    const head = record.unreadable === undefined ? record : record.head;
    if (!head) leave(record);
    else if (head.merchant !== merchant) return;
    // Only its response cannot be decrypted, and a purge does not need to decrypt it.
    else if (record.unreadable !== undefined) await purge({ ...head, scope: record.scope });
    else if (record.state !== 'completed') leave(record);
    else if (record.hasResponse) await purge(record);
    else counts.withoutResponse++;
  }

  let cursor: string | undefined;
  do {
    const from = cursor;
    const page = await patiently(() => store.list({ inDoubt: false, limit: RECORDS_PER_PAGE, cursor: from }));
    counts.examined += page.records.length;
    while (page.records.length > 0) await Promise.all(page.records.splice(0, AT_ONCE).map(handle));
    onProgress(counts);
    cursor = page.cursor;
  } while (cursor !== undefined);
  return counts;
}

type Candidate = Pick<RecordHead, 'token'> & Pick<ListedRecord, 'scope'>;

/** Tries again while the store does not answer. A purge that is repeated under the same token changes nothing more. */
async function patiently<T>(work: () => Promise<T>): Promise<T> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await work();
    } catch (error) {
      const mayPass = error instanceof StoreUnavailable && !(error instanceof UnreadableRecord);
      if (!mayPass || attempt === ATTEMPTS) throw error;
      await sleep(RETRY_AFTER_MS);
    }
  }
}
