import type {
  FoundRecord,
  HeaderView,
  RecordHeadView,
  ResponseView,
  TimelineEntry,
} from '../../console/contract.ts';
import type { AuditView, RecordView, ShownRecord } from '../../doubts/records.ts';

/** Header fields of responses that hold no secret, and no name or account of a person. */
const SHOWN = new Set([
  ...['content-type', 'content-length', 'content-encoding', 'content-language', 'cache-control'],
  ...['date', 'server', 'retry-after', 'x-request-id', 'vary'],
]);

/** A record without its response, as of `nowMs`. */
export function headView(record: RecordView, nowMs: number): RecordHeadView {
  const { completion: _, ...head } = record;
  const inDoubt = record.state === 'in_doubt' || record.ownerGone === true;
  const since = inDoubt ? record.createdAt : undefined;
  return {
    ...head,
    inDoubt,
    ...(since === undefined ? {} : { inDoubtMs: Math.max(0, nowMs - Date.parse(since)) }),
  };
}

export function foundView({ recordId, record, audit }: ShownRecord, nowMs: number): FoundRecord {
  const { completion } = record ?? {};
  return {
    nowAt: new Date(nowMs).toISOString(),
    recordId,
    record: record && headView(record, nowMs),
    ...(completion && { response: responseView(completion) }),
    timeline: timelineOf(record, audit),
  };
}

function responseView(completion: NonNullable<RecordView['completion']>): ResponseView {
  if (completion.kind === 'tombstone') return { kind: 'tombstone' };
  const { status, headers, bodyBytes } = completion;
  return { kind: 'response', status, headers: headerViews(headers, false), bodyBytes };
}

/** @param headers names and values in turn */
export function headerViews(headers: readonly string[], withAll: boolean): HeaderView[] {
  const views: HeaderView[] = [];
  for (let i = 0; i < headers.length; i += 2) {
    const [name = '', value = ''] = headers.slice(i, i + 2);
    views.push({ name, value: withAll || SHOWN.has(name.toLowerCase()) ? value : null });
  }
  return views;
}

/**
 * For programs that have the admin token, which does not permit `bodies`: the value of a header field that may hold a secret is
 * null in the list of names and values.
 */
export function withoutSecretHeaders(record: RecordView): object {
  const { completion } = record;
  if (completion?.kind !== 'response') return record;
  const headers = headerViews(completion.headers, false).flatMap(({ name, value }) => [name, value]);
  return { ...record, completion: { ...completion, headers } };
}

/**
 * What is known of a key's life: its record says when it started and changed last, and each audit record what the record was
 * before. A key that was released and used again has more than one start.
 */
function timelineOf(record: RecordView | null, audit: readonly AuditView[]): TimelineEntry[] {
  const entries: TimelineEntry[] = [];
  for (const { at, by, reason, from, to } of audit) {
    entries.push({ at: from.createdAt, what: 'started' });
    if (from.state !== 'executing') entries.push({ at: from.changedAt, what: stateEntry(from.state) });
    const { as, status } = to;
    entries.push({
      ...{ at, what: 'resolved', by, reason, from: from.state, as },
      ...(status === undefined ? {} : { status }),
    });
  }
  const { state, createdAt, changedAt, requestId, gatewayId } = record ?? {};
  if (createdAt !== undefined && changedAt !== undefined) {
    entries.push({
      ...{ at: createdAt, what: 'started' },
      ...(requestId === undefined ? {} : { requestId }),
      ...(gatewayId === undefined ? {} : { gatewayId }),
    });
    const last = audit.findLast(({ to }) => to.as === 'completed');
    const isResolved = state === 'completed' && last !== undefined && last.from.createdAt === createdAt;
    if (state !== 'executing' && state !== undefined && !isResolved)
      entries.push({ at: changedAt, what: stateEntry(state) });
  }
  return withoutRepetitions(entries);
}

const stateEntry = (state: string): 'completed' | 'in_doubt' =>
  state === 'completed' ? 'completed' : 'in_doubt';

/** Sorts by time. Every audit record repeats the start: of several entries for one event, the one with most fields is kept. */
function withoutRepetitions(entries: readonly TimelineEntry[]): TimelineEntry[] {
  const kept: TimelineEntry[] = [];
  for (const entry of entries.toSorted((a, b) => Date.parse(a.at) - Date.parse(b.at))) {
    const same = kept.findIndex(({ at, what }) => at === entry.at && what === entry.what);
    if (entry.what === 'resolved' || same < 0) kept.push(entry);
    else if (Object.keys(entry).length > Object.keys(kept[same] as TimelineEntry).length) kept[same] = entry;
  }
  return kept;
}
