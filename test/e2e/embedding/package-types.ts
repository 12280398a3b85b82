/** Programs for the compiler. In them, a line after `@ts-expect-error` is an error if it has no mistake. */

/** What the package exports, without Express. */
export const EXPORTS = `
import { createServer } from 'node:http';
import { bearerAuth, createGateway, forward, idempotency, metricsMiddleware, redisStore, sqliteStore } from 'oncegate';
import type { Idempotency, IdempotencyOptions, IdempotencyStore } from 'oncegate';

const store: IdempotencyStore = await sqliteStore({ path: './data', leaseMs: 5000 });
await redisStore({ url: 'redis://localhost', durability: { replicas: 1 } });
// @ts-expect-error: times are numbers
await sqliteStore({ leaseMs: '5s' });
const options: IdempotencyOptions = { store, merchant: (req) => String(req.headers['x-tenant']), inDoubt: 'hold' };
const protect = idempotency(options);
// @ts-expect-error: a store is needed
idempotency({});
// @ts-expect-error: not a policy
idempotency({ store, inDoubt: 'maybe' });
const handle = forward({ upstream: 'http://localhost:9000' });
// @ts-expect-error: the backend is needed
forward({});
createServer((req, res) => protect(req, res, () => handle(req, res, () => {})));
const auth = await bearerAuth({ path: './keys.yaml' });
auth.close();
metricsMiddleware(protect.metrics);
const gateway = await createGateway({
  upstream: { url: 'http://localhost:9000', responseTimeoutMs: '20s' },
  operations: [{ name: 'pay', match: { method: 'POST', path: '/pay' }, idempotency: { waitMs: '5s' } }],
});
// @ts-expect-error: not a duration
await createGateway({ upstream: { url: 'http://localhost:9000', responseTimeoutMs: 'soon' } });
// @ts-expect-error: no such section
await createGateway({ upstream: { url: 'http://localhost:9000' }, nothing: {} });
const { port }: { port: number } = await gateway.listen();
// What Express' own types make of a request.
declare const req: Express.Request;
req.idempotency?.release();
const execution: Idempotency | undefined = req.idempotency;
const key: string | undefined = execution?.key;
export { key, port };
`;

/** The functions of an application with the types of Express 4 or 5. Some documents add `user` to its request. */
export const WITH_EXPRESS = `
import express, { type Request } from 'express';
import { bearerAuth, createGateway, forward, idempotency, metricsMiddleware, type IdempotencyStore } from 'oncegate';

declare global {
  namespace Express {
    interface Request {
      user?: { tenant: string };
    }
  }
}
declare const store: IdempotencyStore;
export const protect = idempotency({ store, merchant: (req) => req.get('x-tenant'), body: (req) => req.originalUrl });
idempotency({ store, merchant: (req: Request) => req.user?.tenant });
idempotency({ store, merchant: (req: Request<{ id: string }>) => req.params.id });
// @ts-expect-error: the request has no such member
idempotency({ store, merchant: (req) => req.tenant });
// @ts-expect-error: a merchant is a text
idempotency({ store, merchant: (req) => req.user?.tenant.length });
const toBackend = forward({ upstream: 'http://localhost:9000', target: (req) => req.originalUrl });
const gateway = await createGateway({ upstream: { url: 'http://localhost:9000' } });
const app = express();
app.get('/metrics', metricsMiddleware(protect.metrics));
app.use('/v1', await bearerAuth(), protect, toBackend);
app.use('/pay', gateway.app);
app.post('/payouts', protect, (req, res) => {
  res.json({ key: req.idempotency?.key, merchant: req.merchant?.code });
});
`;

/** The same without types of Express. */
export const WITHOUT_EXPRESS = `
import { idempotency, type IdempotencyStore } from 'oncegate';

declare const store: IdempotencyStore;
idempotency({ store, merchant: (req) => req.headers.host });
// @ts-expect-error: a request of node:http has no such member
idempotency({ store, merchant: (req) => req.originalUrl });
`;

/** A CommonJS program, by the compiler's rules for every version of Node. */
export const IN_COMMONJS = `
import express from 'express';
import { bearerAuth, idempotency, sqliteStore, type IdempotencyOptions } from 'oncegate';

async function main() {
  const store = await sqliteStore({ path: './data' });
  const options: IdempotencyOptions = { store, merchant: (req) => req.get('x-tenant') };
  const auth = await bearerAuth({ pepper: process.env.ONCEGATE_PEPPER });
  express().post('/payouts', auth, idempotency(options), (req, res) => {
    res.json({ key: req.idempotency?.key });
  });
  // @ts-expect-error: a store is needed
  idempotency({});
}
void main();
`;
