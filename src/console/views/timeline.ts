import type { ShownRecord } from '../../doubts/record-view.ts';

/** Something that happened to a key. */
export interface Entry {
  at: string;
  text: string;
}

/**
 * What is known of a key's life, oldest first. The record says when it started and changed last, and each audit record what the record was before. A key that was released and
 * used again has more than one start.
 */
export function entriesOf({ record, audit }: ShownRecord): Entry[] {
  /** The entries by time and event, because every audit record repeats the start, of which the record knows more. */
  const entries = new Map<string, Entry>();
  const add = (at: string, what: string, text = SENTENCES[what] ?? what) =>
    entries.set(`${at} ${what}`, { at, text });
  for (const { at, by, reason, from, to } of audit) {
    add(from.createdAt, 'started');
    if (from.state !== 'executing') add(from.changedAt, from.state);
    const status = to.status ? ` with status ${to.status}` : '';
    add(at, `resolved as ${to.as}${status}, by ${by}. Reason: ${reason}`);
  }
  const { state, createdAt, changedAt, requestId, gatewayId } = record ?? {};
  if (state !== undefined && createdAt !== undefined && changedAt !== undefined) {
    const gateway = gatewayId ? ` on gateway ${gatewayId}` : '';
    add(createdAt, 'started', `started${requestId ? ` by request ${requestId}` : ''}${gateway}.`);
    const last = audit.findLast(({ to }) => to.as === 'completed');
    const isResolved = state === 'completed' && last?.from.createdAt === createdAt;
    if (state !== 'executing' && !isResolved) add(changedAt, state);
  }
  return [...entries.values()].toSorted((a, b) => Date.parse(a.at) - Date.parse(b.at));
}

const SENTENCES: Record<string, string> = {
  started: 'started.',
  completed: 'completed with the backend’s response.',
  in_doubt: 'in doubt: the backend’s answer did not arrive.',
};
