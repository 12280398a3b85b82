import express, { type Request, type RequestHandler, type Response, Router } from 'express';
import * as z from 'zod';
import type { DoubtsPage, ResolvedAnswer, StoredBody } from '../../console/contract.ts';
import type { Desk } from '../../doubts/desk.ts';
import type { RecordsAnswer, ShownRecord } from '../../doubts/records.ts';
import { LAYER } from '../../ledger/record-id.ts';
import { allowOnly, refuse } from '../problems.ts';
import { MAX_BODY_BYTES, mistakeIn, resolutionFields } from '../resolution.ts';
import type { AdminTools } from '../source.ts';
import { onlyJson, refuseLarge, requirePermission, sessionOf } from './guards.ts';
import { foundView, headerViews, headView } from './views.ts';

const PAGE = 100;
/** How much of a stored body is sent to the page. `oncegate records show --body` prints all of it. */
const MAX_SHOWN_BYTES = 1_048_576;

const doubtsQuery = z.object({
  cursor: z.string().optional(),
  merchant: z.string().min(1).max(255).optional(),
});

const findBody = z.strictObject({
  merchant: z.string().min(1).max(255),
  key: z.string().min(1).max(255),
  layer: z.string().regex(LAYER).optional(),
});

const resolveBody = z.strictObject({
  ...resolutionFields,
  person: z
    .string()
    .trim()
    .regex(
      /^[^()\p{Cc}\p{Cf}\p{Zl}\p{Zp}]{1,60}$/u,
      'must be one line of 1 to 60 characters, without brackets',
    )
    .optional(),
});

/** The routes of the console's API that are about records. The session was checked before. */
export function consoleRecords(desk: Desk, tools: Pick<AdminTools, 'clock' | 'observer'>): Router {
  const handlers = new RecordHandlers(desk, tools);
  const json = [
    refuseLarge(MAX_BODY_BYTES),
    onlyJson,
    express.json({ limit: MAX_BODY_BYTES, inflate: false }),
  ];
  const routes = Router();
  routes.route('/doubts').get(handlers.listDoubts).all(allowOnly('GET, HEAD'));
  routes.route('/records/find').post(json, handlers.find).all(allowOnly('POST'));
  routes.route('/records/:recordId').get(handlers.show).all(allowOnly('GET, HEAD'));
  routes
    .route('/records/:recordId/body')
    .get(requirePermission('bodies'), handlers.showBody)
    .all(allowOnly('GET, HEAD'));
  routes
    .route('/records/:recordId/resolve')
    .post(requirePermission('resolve'), json, handlers.resolve)
    .all(allowOnly('POST'));
  return routes;
}

class RecordHandlers {
  readonly #desk: Desk;
  readonly #clock: AdminTools['clock'];
  readonly #observer: AdminTools['observer'];

  constructor(desk: Desk, { clock, observer }: Pick<AdminTools, 'clock' | 'observer'>) {
    this.#desk = desk;
    this.#clock = clock;
    this.#observer = observer;
  }

  readonly listDoubts: RequestHandler = async (req, res) => {
    const { data, success } = doubtsQuery.safeParse(req.query);
    if (!success)
      return refuse(res, 'invalid', 'A cursor is that of an earlier page, and a merchant a code.');
    const page = await this.#found(res, this.#desk.list({ inDoubt: true, limit: PAGE, ...data }));
    if (!page) return;
    const nowMs = this.#clock.wallMs();
    const records = page.records.map((record) => headView(record, nowMs));
    const nowAt = new Date(nowMs).toISOString();
    res.json({ nowAt, records, cursor: page.cursor ?? null } satisfies DoubtsPage);
  };

  readonly find: RequestHandler = async (req, res) => {
    const { data, success } = findBody.safeParse(req.body);
    if (!success)
      return refuse(
        res,
        'invalid',
        'Name a merchant code and an idempotency key, and a layer if it is not the configured one.',
      );
    const shown = await this.#found(res, this.#desk.find(data.merchant, data.key, data.layer));
    if (shown) res.json(foundView(shown, this.#clock.wallMs()));
  };

  readonly show: RequestHandler = async (req, res) => {
    const shown = await this.#found(res, this.#desk.show(recordIdIn(req)));
    if (shown) res.json(foundView(shown, this.#clock.wallMs()));
  };

  readonly showBody: RequestHandler = async (req, res) => {
    const recordId = recordIdIn(req);
    const stored = await this.#found(res, this.#desk.body(recordId, MAX_SHOWN_BYTES));
    if (!stored) return;
    // Before it is sent, so that no body is read without a trace.
    this.#observer.bodyRead(sessionOf(res).name, recordId, req.socket.remoteAddress ?? 'unknown');
    const { status, headers, body, bodyBytes } = stored;
    res.json({
      ...{ recordId, status, headers: headerViews(headers, true), bodyBytes, body },
      truncated: bodyBytes > MAX_SHOWN_BYTES,
    } satisfies StoredBody);
  };

  readonly resolve: RequestHandler = async (req, res) => {
    const { success, data, error } = resolveBody.safeParse(req.body);
    if (!success) return refuse(res, 'invalid', mistakeIn(error));
    const { person, ...resolution } = data;
    const { name } = sessionOf(res);
    const by = person === undefined ? name : `${person} (${name})`;
    const recordId = recordIdIn(req);
    if (!(await this.#found(res, this.#desk.resolve({ recordId, by, ...resolution })))) return;
    // The key is resolved now. If the record cannot be read after that, the answer is a success without it.
    const shown = await this.#desk.show(recordId);
    const after: ShownRecord = shown.kind === 'found' ? shown.value : { recordId, record: null, audit: [] };
    res.json(foundView(after, this.#clock.wallMs()) satisfies ResolvedAnswer);
  };

  /** What was found. Undefined: the question was refused, and the refusal is answered. */
  async #found<T>(res: Response, asked: Promise<RecordsAnswer<T>>): Promise<T | undefined> {
    const answer = await asked;
    if (answer.kind === 'found') return answer.value;
    const { why, detail, retryAfterMs, record } = answer;
    refuse(res, why, detail, { retryAfterMs, record: record && headView(record, this.#clock.wallMs()) });
    return undefined;
  }
}

const recordIdIn = (req: Request): string => String(req.params.recordId);
