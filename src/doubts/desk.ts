import { createHash } from 'node:crypto';
import type { Store } from '../ledger/ledger.ts';
import { recordIdOf } from '../ledger/record-id.ts';
import { OWNER_DEAD } from '../ledger/rules.ts';
import { RECORD_ID_DIGITS, type RecordId } from '../lib/brands.ts';
import type { Clock } from '../lib/clock.ts';
import { type AuditRecord, auditOf, type ResolutionSource } from '../store/doubts.ts';
import {
  type IdempotencyRecord,
  type ListedRecord,
  type RecordHead,
  StoreUnavailable,
  UnknownCursor,
  UnreadableRecord,
} from '../store/types.ts';
import type { Emit } from '../telemetry/emit.ts';
import type {
  AuditView,
  ListRequest,
  RecordsAnswer,
  RecordsPage,
  RecordView,
  Refusal,
  RefusalReason,
  ResolvedRecord,
  ResolveRequest,
  ShownRecord,
  SortedPage,
  SortedRequest,
  StoredResponse,
} from './record-view.ts';
import { checkResolution, resolutionOf } from './resolution.ts';
import { SortedDoubts } from './sorted.ts';

export interface DeskOptions {
  /** The layer of records that are named by merchant and key, unless the question names another one. */
  layer: string;
  leaseMs: number;
  maxStoredBytes: number;
  clock: Clock;
  /** What its resolutions are counted as. Default: operator. */
  source?: ResolutionSource;
}

const MAX_LIMIT = 1000;
/** How many record ids an ambiguous one is answered with. */
const MAX_NAMED = 5;
/** How many pages one search reads. */
const MAX_SEARCHED_PAGES = 20;

/** Where operators list and show records, and resolve what is in doubt. A failure of the store is an answer, not an exception. */
export class Desk {
  readonly #store: Store;
  readonly #options: DeskOptions;
  readonly #emit: Emit;
  readonly #sorted: SortedDoubts;

  constructor(store: Store, options: DeskOptions, emit: Emit = () => {}) {
    this.#store = store;
    this.#options = options;
    this.#emit = emit;
    this.#sorted = new SortedDoubts(async (limit, cursor) => {
      const page = await store.list({ inDoubt: true, open: true, limit, cursor });
      return { ...page, records: page.records.map(viewOf) };
    }, options.clock);
  }

  /** The store lists all records, so those of one merchant or request are looked for in several pages. */
  list(request: ListRequest): Promise<RecordsAnswer<RecordsPage>> {
    const { inDoubt, open, limit, merchant, requestId } = request;
    const isSearch = merchant !== undefined || requestId !== undefined;
    return answered(async () => {
      if (!Number.isInteger(limit) || limit < 1 || limit > MAX_LIMIT)
        return refused('invalid', `A limit is a number from 1 to ${MAX_LIMIT}.`);
      const records: RecordView[] = [];
      let { cursor } = request;
      let read = 0;
      for (let pages = 0; pages < (isSearch ? MAX_SEARCHED_PAGES : 1); pages++) {
        const page = await this.#store.list({ inDoubt, open, limit: limit - records.length, cursor });
        read += page.records.length;
        const views = page.records.map(viewOf);
        records.push(
          ...views.filter(
            (view) =>
              (merchant === undefined || view.merchant === merchant) &&
              (requestId === undefined || view.requestId === requestId),
          ),
        );
        cursor = page.cursor;
        if (cursor === undefined || records.length >= limit) break;
      }
      return { kind: 'found', value: { records, read, ...(cursor === undefined ? {} : { cursor }) } };
    });
  }

  /** Lists keys in doubt by their age, or in another order. */
  sorted(request: SortedRequest): Promise<RecordsAnswer<SortedPage>> {
    return answered(async () => ({ kind: 'found', value: await this.#sorted.page(request) }));
  }

  /** @param recordId or its first digits */
  show(recordId: string): Promise<RecordsAnswer<ShownRecord>> {
    return this.#answeredFor(recordId, (id) => this.#show(id));
  }

  /** Shows the record of a merchant's key. @param layer Default: the configuration's. */
  find(merchant: string, key: string, layer?: string): Promise<RecordsAnswer<ShownRecord>> {
    return answered(() => this.#show(recordIdOf(layer ?? this.#options.layer, merchant, key)));
  }

  /** The stored response of a record, with the first `maxBytes` of its body. Default: all of it. */
  body(recordId: string, maxBytes?: number): Promise<RecordsAnswer<StoredResponse>> {
    return this.#answeredFor(recordId, async (id) => {
      const record = await this.#store.get(id);
      if (!record) return absent(id);
      const { completion } = record;
      if (completion?.kind !== 'response') return refused('no_body', 'The record has no stored body.');
      const { status, headers, body } = completion.response;
      const shown = body.subarray(0, maxBytes).toString('base64');
      return { kind: 'found', value: { recordId: id, status, headers, bodyBytes: body.length, body: shown } };
    });
  }

  /** @param isDryRun says what would be written, and writes nothing */
  resolve(request: ResolveRequest, isDryRun = false): Promise<RecordsAnswer<ResolvedRecord>> {
    const doubt = isDryRun ? '' : ' Whether it was written is not known: look again.';
    return this.#answeredFor(request.recordId, (id) => this.#resolve(id, request, isDryRun), doubt);
  }

  async #show(recordId: RecordId): Promise<RecordsAnswer<ShownRecord>> {
    const [record, ownerGone, audit, expiresInMs] = await Promise.all([
      this.#store.get(recordId),
      this.#store.isOwnerGone(recordId),
      this.#store.audit(recordId),
      this.#store.expiresInMs(recordId),
    ]);
    if (!record && audit.length === 0) return absent(recordId);
    const more = {
      ...(expiresInMs === undefined ? {} : { expiresAt: timeOf(this.#options.clock.wallMs() + expiresInMs) }),
      ...(ownerGone ? { ownerGone, cause: OWNER_DEAD } : {}),
    };
    return {
      kind: 'found',
      value: {
        recordId,
        record: record ? { ...viewOf({ ...record, recordId }), ...more } : null,
        audit: audit.map(auditView),
      },
    };
  }

  async #resolve(
    recordId: RecordId,
    request: ResolveRequest,
    isDryRun: boolean,
  ): Promise<RecordsAnswer<ResolvedRecord>> {
    const mistake = checkResolution(request, this.#options.maxStoredBytes);
    if (mistake) return refused('invalid', mistake);
    const record = await this.#store.get(recordId);
    if (!record) return absent(recordId);
    const now = { record: viewOf({ ...record, recordId }) };
    if (request.execution !== executionOf(record))
      return refused('changed', 'The record belongs to another execution than the one that was named.', now);
    if (record.state === 'completed')
      return refused('changed', 'It is completed: there is nothing to resolve.', now);
    const resolution = resolutionOf(request);
    const note = { by: request.by.trim(), reason: request.reason.trim() };
    const { at: _, ...done } = auditView(auditOf(record, resolution, note, 0));
    if (isDryRun) return { kind: 'found', value: { recordId, ...done } };
    const resolved = await this.#store.resolve(recordId, record.token, resolution, {
      ...note,
      ...{ source: this.#options.source ?? 'operator' },
    });
    this.#sorted.forget();
    if (resolved === 'alive') return this.#alive(now.record);
    if (resolved === 'changed') return await this.#changed(recordId);
    const { merchant, operation, state: from } = record;
    this.#emit('resolved', { recordId, merchant, operation, ...note, from, to: resolution.as });
    return { kind: 'found', value: { recordId, ...done } };
  }

  /** Answers as {@link answered} does, for the one record whose id begins with these digits. */
  #answeredFor<Value>(
    digits: string,
    work: (recordId: RecordId) => Promise<RecordsAnswer<Value>>,
    doubt?: string,
  ): Promise<RecordsAnswer<Value>> {
    return answered(async () => {
      if (!/^[0-9a-f]{4,48}$/.test(digits))
        return refused(
          'invalid',
          'A record id is 48 hexadecimal digits in lower case, or the first of them, at least 4.',
        );
      if (digits.length === RECORD_ID_DIGITS) return await work(digits as RecordId);
      const ids = await this.#store.idsOf(digits);
      const [id] = ids;
      if (id === undefined) return refused('absent', `There is no record whose id begins with ${digits}.`);
      if (ids.length === 1) return await work(id);
      const recordIds = ids.slice(0, MAX_NAMED);
      const detail = `The ids of ${ids.length} records begin with ${digits}, such as ${recordIds.join(', ')}.`;
      return refused('ambiguous', detail, { recordIds });
    }, doubt);
  }

  #alive(record: RecordView): Refusal {
    const { leaseMs: retryAfterMs } = this.#options;
    const detail = `Its owner is still alive: try again after ${retryAfterMs} ms.`;
    return refused('alive', detail, { record, retryAfterMs });
  }

  async #changed(recordId: RecordId): Promise<Refusal> {
    const record = await this.#store.get(recordId);
    const now = record ? { record: viewOf({ ...record, recordId }) } : {};
    return refused('changed', `It changed meanwhile, and is ${record?.state ?? 'absent'} now.`, now);
  }
}

const refused = (why: RefusalReason, detail: string, more: Partial<Refusal> = {}): Refusal => ({
  ...{ kind: 'refused', why, detail },
  ...more,
});

/** Names the id, so that it can be found in the log. */
const absent = (recordId: RecordId): Refusal =>
  refused('absent', `There is no record with the id ${recordId}.`, { recordIds: [recordId] });

/** @param doubt a sentence that is added if the store does not answer */
async function answered<Value>(
  work: () => Promise<RecordsAnswer<Value>>,
  doubt = '',
): Promise<RecordsAnswer<Value>> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof UnknownCursor) return refused('invalid', `${error.message}.`);
    if (error instanceof UnreadableRecord) return refused('unreadable', `${error.message}.`);
    if (!(error instanceof StoreUnavailable)) throw error;
    return refused('unavailable', `${error.message}.${doubt}`);
  }
}

/** Derived from the token. The token itself is never shown, because it permits writing. */
const executionOf = ({ token }: RecordHead): string =>
  createHash('sha256').update('execution').update(token).digest('hex').slice(0, 16);

function viewOf(record: ListedRecord | (IdempotencyRecord & { recordId: RecordId })): RecordView {
  if ('unreadable' in record && record.unreadable !== undefined)
    return { recordId: record.recordId, state: 'unreadable', reason: record.unreadable };
  const { recordId, state, merchant, operation, key, requestId, gatewayId, encryptionKeyId, wasInDoubt } =
    record;
  return {
    ...{ recordId, state, execution: executionOf(record), merchant, operation, key, requestId, gatewayId },
    fingerprint: record.fingerprint.toString('hex'),
    createdAt: timeOf(record.createdAtMs),
    changedAt: timeOf(record.changedAtMs),
    ...(encryptionKeyId === undefined ? {} : { encryptionKeyId }),
    ...(wasInDoubt ? { wasInDoubt } : {}),
    ...(record.restarted ? { sentAgain: true } : {}),
    ...('ownerGone' in record && record.ownerGone ? { ownerGone: true, cause: OWNER_DEAD } : {}),
    ...(record.cause ? { cause: record.cause } : {}),
    ...('completion' in record ? completionView(record.completion) : {}),
  };
}

function completionView(completion: IdempotencyRecord['completion']): Pick<RecordView, 'completion'> {
  if (!completion) return {};
  if (completion.kind === 'tombstone') return { completion: { kind: 'tombstone' } };
  const { status, headers, body } = completion.response;
  return { completion: { kind: 'response', status, headers, bodyBytes: body.length } };
}

function auditView({ atMs, from: { createdAtMs, changedAtMs, ...from }, ...rest }: AuditRecord): AuditView {
  const times = { createdAt: timeOf(createdAtMs), changedAt: timeOf(changedAtMs) };
  return { at: timeOf(atMs), ...rest, from: { ...from, ...times } };
}

/** The last time for which there is a `Date`. A damaged record may have a later one, and must not hide all others. */
const LAST_DATE_MS = 8_640_000_000_000_000;

const timeOf = (ms: number): string =>
  new Date(Math.min(Math.max(ms, -LAST_DATE_MS), LAST_DATE_MS)).toISOString();
