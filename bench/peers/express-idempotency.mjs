// Express with undici behind express-idempotency, its records in Redis.
// Follows express-idempotency's README, sections "Getting started", "Determine a idempotency hit in route
// handler" and "Options", and express-idempotency-redis-adapter's README, section "Getting started".
import express from 'express';
import { getSharedIdempotencyService, idempotency } from 'express-idempotency';
import redisAdapter from 'express-idempotency-redis-adapter';
import { host, port, redisUrl } from './lib/environment.mjs';
import { forwarded, passOn } from './lib/forward.mjs';
import { jsonBody } from './lib/json-body.mjs';

const dataAdapter = new redisAdapter.default({ connectionConfig: { url: redisUrl } });
await dataAdapter.connect();

async function once(request, response) {
  // The library has already answered, but still calls the next handler.
  if (getSharedIdempotencyService().isHit(request)) return;
  const { status, headers, body } = await forwarded(request, request.rawBody);
  // The library stores the argument of `send` as JSON, and would replay a Buffer as an object.
  response.status(status).set(headers).send(body.toString());
}

/** The library has set the status: 409 in progress, 417 for another body. */
function refuse(error, _request, response, next) {
  if (response.headersSent || response.statusCode < 400) return next(error);
  response.json({ error: error.message });
}

const app = express();
// The backend's answers have no ETag, and generating one would hash the body.
app.disable('etag');
app.post(
  '/*path',
  jsonBody,
  idempotency({ idempotencyKeyHeader: 'x-service-idempotency', dataAdapter }),
  once,
);
app.use(passOn);
app.use(refuse);

app.listen(port, host);
