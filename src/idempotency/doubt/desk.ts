import type { Scope } from '../../kernel/brands.ts';
import {
  type AuditRecord,
  auditRecord,
  type ResolutionNote,
  type Store,
  StoreUnavailable,
  UnknownCursor,
} from '../store.ts';
import { checkResolution, type ResolveRequest, resolutionOf } from './desk-request.ts';
import { executionOf, type RecordView, viewOf } from './desk-view.ts';

/** A question about records. Plain data, because it may come from another process. */
export type DeskQuestion =
  | { kind: 'list'; inDoubt: boolean; limit: number; cursor?: string | undefined }
  | { kind: 'show'; scope: string }
  | ({ kind: 'resolve' } & ResolveRequest);

export type DeskAnswer = { kind: 'found'; value: object } | Refusal;

export interface Refusal {
  kind: 'refused';
  why: 'invalid' | 'absent' | 'alive' | 'changed' | 'unavailable';
  /** One sentence for the operator. */
  detail: string;
  /** When to ask again, where that helps. */
  retryAfterMs?: number;
  /** The record as it is now. */
  record?: RecordView;
}

export interface DeskOptions {
  leaseMs: number;
  maxStoredBytes: number;
}

/** Called for each resolution that was written. */
export type ObserveResolution = (scope: string, resolution: Omit<AuditRecord, 'atMs'>) => void;

const MAX_LIMIT = 1000;

/** Where operators look at records and resolve what is in doubt. A store's failure is an answer, not an exception. */
export class Desk {
  readonly #store: Store;
  readonly #options: DeskOptions;
  readonly #observe: ObserveResolution;

  constructor(store: Store, options: DeskOptions, observe: ObserveResolution = () => {}) {
    this.#store = store;
    this.#options = options;
    this.#observe = observe;
  }

  async answer(question: DeskQuestion): Promise<DeskAnswer> {
    try {
      if (question.kind === 'list') return await this.#list(question);
      const scope = scopeIn(question.scope);
      if (!scope) return refused('invalid', 'A scope is 64 hexadecimal digits in lower case.');
      if (question.kind === 'show') return await this.#show(scope);
      return await this.#resolve(scope, question);
    } catch (error) {
      if (error instanceof UnknownCursor) return refused('invalid', `${error.message}.`);
      if (!(error instanceof StoreUnavailable)) throw error;
      const doubt = question.kind === 'resolve' ? ' Whether it was written is not known: look again.' : '';
      return refused('unavailable', `${error.message}.${doubt}`);
    }
  }

  /** The stored body; undefined where there is none. @throws {StoreUnavailable} */
  async bodyOf(scope: Scope): Promise<Buffer | undefined> {
    const completion = (await this.#store.get(scope))?.completion;
    return completion?.kind === 'response' ? completion.response.body : undefined;
  }

  async #list({ inDoubt, limit, cursor }: Extract<DeskQuestion, { kind: 'list' }>): Promise<DeskAnswer> {
    if (!Number.isInteger(limit) || limit < 1 || limit > MAX_LIMIT)
      return refused('invalid', `A limit is a number from 1 to ${MAX_LIMIT}.`);
    const { records, ...rest } = await this.#store.list({ inDoubt, limit, cursor });
    return { kind: 'found', value: { records: records.map(viewOf), ...rest } };
  }

  async #show(scope: Scope): Promise<DeskAnswer> {
    const [record, audit] = await Promise.all([this.#store.get(scope), this.#store.audit(scope)]);
    if (!record && audit.length === 0) return refused('absent', 'There is no record.');
    return {
      kind: 'found',
      value: { record: record ? viewOf({ ...record, scope }) : null, audit: audit.map(auditView) },
    };
  }

  async #resolve(scope: Scope, request: ResolveRequest): Promise<DeskAnswer> {
    const mistake = checkResolution(request, this.#options.maxStoredBytes);
    if (mistake) return refused('invalid', mistake);
    const record = await this.#store.get(scope);
    if (!record) return refused('absent', 'There is no record: there is nothing to resolve.');
    const now = { record: viewOf({ ...record, scope }) };
    if (request.execution !== undefined && request.execution !== executionOf(record))
      return refused('changed', 'The record belongs to another execution than the one that was named.', now);
    if (record.state === 'completed')
      return refused('changed', 'It is completed: there is nothing to resolve.', now);
    const [resolution, note] = [resolutionOf(request), noteOf(request)];
    const resolved = await this.#store.resolve(scope, record.token, resolution, note);
    if (resolved === 'alive') return this.#alive(now.record);
    if (resolved === 'changed') return await this.#changed(scope);
    const { atMs: _, ...done } = auditRecord(record, resolution, note, 0);
    this.#observe(scope, done);
    return { kind: 'found', value: { scope, ...done } };
  }

  #alive(record: RecordView): Refusal {
    const { leaseMs: retryAfterMs } = this.#options;
    const detail = `Its owner is still alive: try again after ${retryAfterMs} ms.`;
    return refused('alive', detail, { record, retryAfterMs });
  }

  async #changed(scope: Scope): Promise<Refusal> {
    const record = await this.#store.get(scope);
    const now = record ? { record: viewOf({ ...record, scope }) } : {};
    return refused('changed', `It changed meanwhile, and is ${record?.state ?? 'absent'} now.`, now);
  }
}

const refused = (why: Refusal['why'], detail: string, more: Partial<Refusal> = {}): Refusal => ({
  ...{ kind: 'refused', why, detail },
  ...more,
});

const scopeIn = (text: string): Scope | undefined =>
  /^[0-9a-f]{64}$/.test(text) ? (text as Scope) : undefined;

const noteOf = ({ by, reason }: ResolveRequest): ResolutionNote => ({ by: by.trim(), reason: reason.trim() });

function auditView({ atMs, from: { createdAtMs, changedAtMs, ...from }, ...rest }: AuditRecord) {
  const times = { createdAt: timeOf(createdAtMs), changedAt: timeOf(changedAtMs) };
  return { at: timeOf(atMs), ...rest, from: { ...from, ...times } };
}

const timeOf = (ms: number): string => new Date(ms).toISOString();
