import express, { type ErrorRequestHandler, type RequestHandler, type Response, Router } from 'express';
import * as z from 'zod';
import type { Desk } from '../doubts/desk.ts';
import type { RecordsAnswer, RecordView, Refusal, RefusalReason } from '../doubts/records.ts';
import { withoutSecretHeaders } from './console/views.ts';
import { allowOnly } from './problems.ts';
import { MAX_BODY_BYTES, mistakeIn, resolutionFields } from './resolution.ts';

type Why = Exclude<RefusalReason, 'no_body'> | 'too_large' | 'off';

/** Status and title of each refusal. */
const refusals: Record<Why, [status: number, title: string]> = {
  invalid: [400, 'The request is malformed'],
  absent: [404, 'There is no such record'],
  alive: [409, 'The owner of the record is still alive'],
  changed: [409, 'The record is not in doubt any more'],
  unreadable: [409, 'The record cannot be read'],
  too_large: [413, 'The request body is too large'],
  off: [403, 'Records are not served here'],
  unavailable: [503, 'The idempotency store cannot be reached'],
};

const resolveBody = z.strictObject({ ...resolutionFields, by: z.string() });

const DIGITS = /^\d{1,6}$/;

/** The routes under `/records`. The admin token was checked before. */
export function recordsRoutes(desk: Desk): Router {
  const routes = Router();
  routes.get('/', async (req, res) => {
    const { in_doubt: inDoubt = 'false', limit = '100', cursor } = req.query;
    const known = ['true', 'false'].includes(String(inDoubt)) && DIGITS.test(String(limit));
    if (!known || (cursor !== undefined && typeof cursor !== 'string'))
      return refuseRecord(
        res,
        'invalid',
        'in_doubt must be true or false, limit a number, and cursor that of an earlier page.',
      );
    answer(res, await desk.list({ inDoubt: inDoubt === 'true', limit: Number(limit), cursor }));
  });
  routes.get('/:recordId', async (req, res) => {
    answer(res, await desk.show(req.params.recordId));
  });
  routes.post(
    '/:recordId/resolve',
    refuseTooLarge,
    express.json({ limit: MAX_BODY_BYTES, inflate: false }),
    async (req, res) => {
      const { success, data, error } = resolveBody.safeParse(req.body);
      if (!success) return refuseRecord(res, 'invalid', mistakeIn(error));
      answer(res, await desk.resolve({ recordId: req.params.recordId, ...data }));
    },
  );
  for (const path of ['/', '/:recordId']) routes.all(path, allowOnly('GET, HEAD'));
  routes.all('/:recordId/resolve', allowOnly('POST'));
  routes.use(unreadableBody);
  return routes;
}

/** `express.json` would read a too large body completely before it refuses it. */
const refuseTooLarge: RequestHandler<{ recordId: string }> = (req, res, next) => {
  if (Number(req.headers['content-length'] ?? 0) > MAX_BODY_BYTES) tooLarge(res);
  else next();
};

const tooLarge = (res: Response): void =>
  refuseRecord(res, 'too_large', `The limit is ${MAX_BODY_BYTES} bytes.`);

export const refuseOff = (res: Response): void =>
  refuseRecord(res, 'off', 'Records are served only if admin.token is set.');

function answer(res: Response, found: RecordsAnswer<object>): void {
  res.set('Cache-Control', 'no-store');
  if (found.kind === 'refused') refuseRecord(res, found.why as Why, found.detail, found);
  else res.json(shownValue(found.value));
}

/** Of what these routes ask for, only a single record has its response. */
const shownValue = (value: { record?: RecordView | null }): object =>
  value.record ? { ...value, record: withoutSecretHeaders(value.record) } : value;

/** As `refuse` of problems.ts, but with types and titles of its own, and with the whole record. */
function refuseRecord(
  res: Response,
  why: Why,
  detail: string,
  { retryAfterMs, record }: Pick<Refusal, 'retryAfterMs' | 'record'> = {},
): void {
  const [status, title] = refusals[why];
  if (retryAfterMs !== undefined) res.set('Retry-After', String(Math.ceil(retryAfterMs / 1000)));
  // Node would parse the rest of an unread body as the next request.
  if (!res.req.complete) res.shouldKeepAlive = false;
  res.set('Cache-Control', 'no-store').status(status).type('application/problem+json');
  const problem = { type: `urn:oncegate:problem:records_${why}`, title, status, detail, code: why };
  res.send(JSON.stringify({ ...problem, record: record && withoutSecretHeaders(record) }));
}

const unreadableBody: ErrorRequestHandler = (error: { type?: string }, _req, res, next) => {
  if (error.type === 'entity.too.large') tooLarge(res);
  else if (error.type) refuseRecord(res, 'invalid', 'The body cannot be read as JSON.');
  else next(error);
};
