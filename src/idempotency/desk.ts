import type { Scope } from '../kernel/brands.ts';
import { checkResolution, type ResolveRequest, resolutionOf } from './desk-request.ts';
import { executionOf, type RecordView, viewOf } from './desk-view.ts';
import { UnknownCursor } from './listing.ts';
import type { AuditRecord, ResolutionNote } from './resolution.ts';
import { auditRecord } from './resolution.ts';
import { type Store, StoreUnavailable } from './store.ts';

/** What people ask about records: plain data, for it may come from another process. */
export type DeskQuestion =
  | { kind: 'list'; inDoubt: boolean; limit: number; cursor?: string | undefined }
  | { kind: 'show'; scope: string }
  | ({ kind: 'resolve' } & ResolveRequest);

export type DeskAnswer = { kind: 'found'; value: object } | Refusal;

export interface Refusal {
  kind: 'refused';
  why: 'invalid' | 'absent' | 'alive' | 'changed' | 'unavailable';
  /** One sentence for whoever asked. */
  detail: string;
  /** When to ask again, where that helps. */
  retryAfterMs?: number;
  /** What stands there now. */
  stands?: RecordView;
}

export interface DeskOptions {
  leaseMs: number;
  maxStoredBytes: number;
}

/** Told of each resolution that was written. */
export type ObserveResolution = (scope: string, resolution: Omit<AuditRecord, 'atMs'>) => void;

const MAX_LIMIT = 1000;

/** Where people see to records: they look at them, and resolve what is in doubt. Never throws for what a store may do. */
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
    const settlement = (await this.#store.get(scope))?.settlement;
    return settlement?.kind === 'response' ? settlement.response.body : undefined;
  }

  async #list({ inDoubt, limit, cursor }: Extract<DeskQuestion, { kind: 'list' }>): Promise<DeskAnswer> {
    if (!Number.isInteger(limit) || limit < 1 || limit > MAX_LIMIT)
      return refused('invalid', `A limit is a number from 1 to ${MAX_LIMIT}.`);
    const { records, ...rest } = await this.#store.list({ inDoubt, limit, cursor });
    return { kind: 'found', value: { records: records.map(viewOf), ...rest } };
  }

  async #show(scope: Scope): Promise<DeskAnswer> {
    const [record, audit] = await Promise.all([this.#store.get(scope), this.#store.audit(scope)]);
    if (!record && audit.length === 0) return refused('absent', 'Nothing stands there.');
    return {
      kind: 'found',
      value: { record: record ? viewOf({ ...record, scope }) : null, audit: audit.map(auditView) },
    };
  }

  async #resolve(scope: Scope, request: ResolveRequest): Promise<DeskAnswer> {
    const mistake = checkResolution(request, this.#options.maxStoredBytes);
    if (mistake) return refused('invalid', mistake);
    const stands = await this.#store.get(scope);
    if (!stands) return refused('absent', 'Nothing stands there: there is nothing to resolve.');
    const now = { stands: viewOf({ ...stands, scope }) };
    if (request.execution !== undefined && request.execution !== executionOf(stands))
      return refused('changed', 'Another execution stands there than the one that was looked at.', now);
    if (stands.state === 'settled')
      return refused('changed', 'It is settled: there is nothing to resolve.', now);
    const [resolution, note] = [resolutionOf(request), noteOf(request)];
    const resolved = await this.#store.resolve(scope, stands.token, resolution, note);
    if (resolved === 'alive') return this.#alive(now.stands);
    if (resolved === 'changed') return await this.#changed(scope);
    const { atMs: _, ...done } = auditRecord(stands, resolution, note, 0);
    this.#observe(scope, done);
    return { kind: 'found', value: { scope, ...done } };
  }

  #alive(stands: RecordView): Refusal {
    const { leaseMs: retryAfterMs } = this.#options;
    const detail =
      stands.state === 'claimed'
        ? 'It was claimed, and nothing was sent yet: its owner is about to, or a retry takes over.'
        : `Its owner is still alive: try again after ${retryAfterMs} ms.`;
    return refused('alive', detail, { stands, retryAfterMs });
  }

  async #changed(scope: Scope): Promise<Refusal> {
    const record = await this.#store.get(scope);
    const stands = record ? { stands: viewOf({ ...record, scope }) } : {};
    return refused('changed', `It changed meanwhile, and is ${record?.state ?? 'absent'} now.`, stands);
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
