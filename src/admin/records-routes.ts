import { type RequestHandler, type Response, Router } from 'express';
import * as z from 'zod';
import type { Desk } from '../doubts/desk.ts';
import type { RecordsAnswer, RecordView } from '../doubts/record-view.ts';
import { LAYER } from '../ledger/record-id.ts';
import type { Emit } from '../telemetry/emit.ts';
import { jsonBody, loginOf, requirePermission, sessionOf } from './console/request-checks.ts';
import { allowOnly, refuse } from './problems.ts';

/** The largest body of a request. Keys with a larger response are resolved on the command line, or without a body. */
const MAX_BODY_BYTES = 2_097_152;
/** How much of a stored body is sent. `oncegate records show --body` prints all of it. */
const MAX_SHOWN_BYTES = 1_048_576;

const listQuery = z.object({
  in_doubt: z.enum(['true', 'false']).default('false'),
  limit: z
    .string()
    .regex(/^\d{1,6}$/)
    .default('100'),
  cursor: z.string().optional(),
  merchant: z.string().min(1).max(255).optional(),
  open: z.enum(['true', 'false']).default('false'),
  request_id: z.string().min(1).max(255).optional(),
});

/** Of keys in doubt, in an order. */
const sortedQuery = z.object({
  in_doubt: z.literal('true'),
  cursor: z.undefined().optional(),
  sort: z.enum(['oldest', 'newest', 'merchant', 'operation', 'cause']),
  page: z.coerce.number().int().min(1).default(1),
  limit: z.coerce.number().int().min(1).max(1000).default(100),
  ...{ merchant: z.string().optional(), operation: z.string().optional(), cause: z.string().optional() },
  older_than_ms: z.coerce.number().min(0).optional(),
});

const findBody = z.strictObject({
  merchant: z.string().min(1).max(255),
  key: z.string().min(1).max(255),
  layer: z.string().regex(LAYER).optional(),
});

const resolution = {
  as: z.enum(['completed', 'released']),
  reason: z.string(),
  /** The execution that was looked at. */
  execution: z.string().min(1).max(100),
  status: z.number().optional(),
  /** The fields by name, parsed into names and values in turn. */
  headers: z
    .record(z.string(), z.union([z.string(), z.array(z.string())]))
    .transform((fields) =>
      Object.entries(fields).flatMap(([name, values]) => [values].flat().flatMap((value) => [name, value])),
    )
    .optional(),
  body: z.base64().optional(),
};

/** A program says who resolves the key. */
const resolveBody = z.strictObject({ ...resolution, by: z.string() });

/** The audit trail has the name of a session's token, so that nobody can take another's. A person may add their own. */
const resolveBodyOf = (tokenName: string) =>
  z
    .strictObject({
      ...resolution,
      person: z
        .string()
        .trim()
        .regex(
          /^[^()\p{Cc}\p{Cf}\p{Zl}\p{Zp}]{1,60}$/u,
          'must be one line of 1 to 60 characters, without brackets',
        )
        .optional(),
    })
    .transform(({ person, ...rest }) => ({
      ...rest,
      by: person === undefined ? tokenName : `${person} (${tokenName})`,
    }));

/** The routes under `/records`, for programs and for the console's page. Who asks was found out before. */
export function recordsRoutes(desk: Desk, emit: Emit): Router {
  const json = jsonBody(MAX_BODY_BYTES, 'records');
  const routes = Router();
  routes
    .route('/')
    .get(async (req, res) => {
      if (req.query.sort !== undefined) return await answerSorted(desk, req.query, res);
      const { success, data } = listQuery.safeParse(req.query);
      if (!success)
        return refuseRecord(
          res,
          'invalid',
          'in_doubt and open must be true or false, limit a number, cursor that of an earlier page, merchant a code, and request_id a text.',
        );
      const { cursor, merchant, request_id: requestId } = data;
      const [inDoubt, open] = [data.in_doubt === 'true', data.open === 'true' || data.in_doubt === 'true'];
      const limit = Number(data.limit);
      answer(res, await desk.list({ inDoubt, open, limit, cursor, merchant, requestId }));
    })
    .all(allowOnly('GET, HEAD'));
  // By POST, so that idempotency keys do not get into the logs of proxies.
  routes
    .route('/find')
    .post(json, async (req, res) => {
      const { success, data, error } = findBody.safeParse(req.body);
      if (!success) return refuseRecord(res, 'invalid', mistakeIn(error));
      answer(res, await desk.find(data.merchant, data.key, data.layer));
    })
    .all(allowOnly('POST'));
  routes
    .route('/:recordId')
    .get(async (req, res) => answer(res, await desk.show(req.params.recordId)))
    .all(allowOnly('GET, HEAD'));
  routes
    .route('/:recordId/body')
    .get(requirePermission('bodies'), async (req, res) => {
      const found = await desk.body(req.params.recordId, MAX_SHOWN_BYTES);
      // Before it is sent, so that no body is read without a trace.
      const client = req.socket.remoteAddress ?? 'unknown';
      if (found.kind === 'found')
        emit('body_read', { by: loginOf(res).name, recordId: found.value.recordId, client });
      answer(res, found);
    })
    .all(allowOnly('GET, HEAD'));
  routes
    .route('/:recordId/resolve')
    .post(requirePermission('resolve'), json, async (req, res) => {
      const session = sessionOf(res);
      const form = session ? resolveBodyOf(session.name) : resolveBody;
      const { success, data, error } = form.safeParse(req.body);
      if (!success) return refuseRecord(res, 'invalid', mistakeIn(error));
      answer(res, await desk.resolve({ recordId: req.params.recordId, ...data }));
    })
    .all(allowOnly('POST'));
  return routes;
}

async function answerSorted(desk: Desk, query: unknown, res: Response): Promise<void> {
  const { success, data, error } = sortedQuery.safeParse(query);
  if (!success) return refuseRecord(res, 'invalid', mistakeIn(error));
  const { in_doubt: _, older_than_ms: olderThanMs, ...request } = data;
  answer(res, await desk.sorted({ ...request, olderThanMs }));
}

/** Names the member that is wrong, without any value of the request. */
function mistakeIn({ issues }: z.ZodError): string {
  const [issue] = issues;
  const place = issue?.path.join('.') || 'the body';
  return `${place}: ${issue?.code === 'unrecognized_keys' ? 'has an unknown member' : (issue?.message ?? 'is wrong')}.`;
}

function answer(res: Response, found: RecordsAnswer<object>): void {
  const { record } = (found.kind === 'found' ? found.value : found) as { record?: RecordView | null };
  const shown = record && withoutSecretHeaders(record);
  if (found.kind === 'found')
    res.set('Cache-Control', 'no-store').json(shown ? { ...found.value, record: shown } : found.value);
  else refuse(res, found.why, found.detail, { ...found, of: 'records', record: shown ?? undefined });
}

const refuseRecord = (res: Response, code: 'invalid' | 'off', detail: string): void =>
  refuse(res, code, detail, { of: 'records' });

export const refuseOff: RequestHandler = (_req, res) =>
  refuseRecord(res, 'off', 'Records are served only if admin.token is set.');

/** Header fields of responses that hold no secret, and no name or account of a person. */
const SHOWN = new Set([
  ...['content-type', 'content-length', 'content-encoding', 'content-language', 'cache-control'],
  ...['date', 'server', 'retry-after', 'x-request-id', 'vary'],
]);

/** Hides the values of header fields that may hold a secret. Only the answer with the stored body has them, by permission. */
function withoutSecretHeaders(record: RecordView): RecordView {
  const { completion } = record;
  if (completion?.kind !== 'response') return record;
  const headers = completion.headers.map((text, i, all) =>
    i % 2 === 0 || SHOWN.has(String(all[i - 1]).toLowerCase()) ? text : null,
  );
  return { ...record, completion: { ...completion, headers } };
}
