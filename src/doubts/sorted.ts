import type { Clock } from '../lib/clock.ts';
import type { RecordsPage, RecordView, SortedPage, SortedRequest } from './record-view.ts';

/** How many records are read at once. Requests wait while their views are made. */
const READ_AT_ONCE = 250;
/** More are not read. They take some ten megabytes. */
const MOST_READ = 10_000;
/** A list is used again for ten times as long as it took to read it, so reading takes a tenth of the time at most. */
const KEPT_FOR = { times: 10, atMostMs: 5000 };
/** More names of operations or causes are of no use in a list to choose from. */
const MOST_NAMES = 50;

/** Reads one page of the store's list of keys in doubt. */
type ListPage = (
  limit: number,
  cursor: string | undefined,
) => Promise<Pick<RecordsPage, 'records' | 'cursor'>>;

/** What the store has in doubt. It lists its records in no order, so all are read before some are shown. */
interface Doubts {
  records: RecordView[];
  isCut: boolean;
}

/** All keys in doubt, filtered and sorted, a page at a time. */
export class SortedDoubts {
  readonly #list: ListPage;
  readonly #clock: Clock;
  /** What was read last, or is being read. */
  #read: Promise<Doubts> | undefined;

  constructor(list: ListPage, clock: Clock) {
    this.#list = list;
    this.#clock = clock;
  }

  async page({ page, limit, sort, ...filter }: SortedRequest): Promise<SortedPage> {
    this.#read ??= this.#readAll();
    const { records, isCut } = await this.#read;
    const nowMs = this.#clock.wallMs();
    const matching = records.filter((record) => matches(record, filter, nowMs)).sort(ORDERS[sort]);
    const pages = Math.max(1, Math.ceil(matching.length / limit));
    // Keys may have been resolved since the page before.
    const number = Math.min(page, pages);
    return {
      records: matching.slice((number - 1) * limit, number * limit),
      ...{ page: number, pages, matching: matching.length, inAll: records.length, isCut },
      operations: namesOf(records, ({ operation }) => operation),
      causes: namesOf(records, ({ cause }) => cause),
    };
  }

  /** Something was resolved. */
  forget(): void {
    this.#read = undefined;
  }

  #readAll(): Promise<Doubts> {
    const startedMs = this.#clock.monotonicMs();
    const reading = this.#readPages();
    const drop = () => {
      if (this.#read === reading) this.forget();
    };
    reading.then(() => {
      const keptMs = KEPT_FOR.times * (this.#clock.monotonicMs() - startedMs);
      this.#clock.after(Math.min(keptMs, KEPT_FOR.atMostMs), drop, true);
    }, drop);
    return reading;
  }

  async #readPages(): Promise<Doubts> {
    // The store may list a record twice if it changes meanwhile.
    const found = new Map<string, RecordView>();
    let cursor: string | undefined;
    for (let read = 0; read < MOST_READ; read += READ_AT_ONCE) {
      const page = await this.#list(READ_AT_ONCE, cursor);
      for (const record of page.records) found.set(record.recordId, record);
      cursor = page.cursor;
      if (cursor === undefined) break;
    }
    return { records: [...found.values()], isCut: cursor !== undefined };
  }
}

type Filter = Omit<SortedRequest, 'page' | 'limit' | 'sort'>;

const matches = (record: RecordView, { merchant, operation, cause, olderThanMs }: Filter, nowMs: number) =>
  (merchant === undefined || record.merchant === merchant) &&
  (operation === undefined || record.operation === operation) &&
  (cause === undefined || record.cause === cause) &&
  (olderThanMs === undefined || nowMs - startOf(record) >= olderThanMs);

/** A record that cannot be read has no time, and comes last. */
const startOf = ({ createdAt }: RecordView): number =>
  createdAt === undefined ? Number.MAX_SAFE_INTEGER : Date.parse(createdAt);

type Order = (a: RecordView, b: RecordView) => number;

const oldest: Order = (a, b) => startOf(a) - startOf(b);

const by =
  (name: 'merchant' | 'operation' | 'cause'): Order =>
  (a, b) =>
    (a[name] ?? '').localeCompare(b[name] ?? '') || oldest(a, b);

const ORDERS: Readonly<Record<SortedRequest['sort'], Order>> = {
  oldest,
  newest: (a, b) => Number(!a.createdAt) - Number(!b.createdAt) || oldest(b, a),
  merchant: by('merchant'),
  operation: by('operation'),
  cause: by('cause'),
};

/** The names that the records have, and how many have each, the most frequent first. */
function namesOf(records: RecordView[], nameOf: (record: RecordView) => string | undefined) {
  const counts = new Map<string, number>();
  for (const name of records.map(nameOf)) if (name) counts.set(name, (counts.get(name) ?? 0) + 1);
  const all = Array.from(counts, ([name, keys]) => ({ name, keys }));
  return all.sort((a, b) => b.keys - a.keys).slice(0, MOST_NAMES);
}
