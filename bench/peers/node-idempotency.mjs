// Express with undici behind @node-idempotency/core, its records in Redis.
// Follows @node-idempotency/core's Readme, section "usage": `onRequest` before the work, `onResponse` after
// it, awaited. The Readme has no Redis example: @node-idempotency/storage-adapter-redis takes the options of
// redis's `createClient`.
import { Idempotency, IdempotencyError, IdempotencyErrorCodes } from '@node-idempotency/core';
import { RedisStorageAdapter } from '@node-idempotency/storage-adapter-redis';
import express from 'express';
import { host, port, redisUrl } from './lib/environment.mjs';
import { answer, forwarded, passOn } from './lib/forward.mjs';
import { jsonBody } from './lib/json-body.mjs';

const STATUS_OF_ERROR = {
  [IdempotencyErrorCodes.REQUEST_IN_PROGRESS]: 409,
  [IdempotencyErrorCodes.IDEMPOTENCY_FINGERPRINT_MISSMATCH]: 422,
};

const storage = new RedisStorageAdapter({ url: redisUrl });
await storage.connect();

const idempotency = new Idempotency(storage, {
  idempotencyKey: 'x-service-idempotency',
  cacheKeyPrefix: 'peer',
});

/** The input for the key and the fingerprint of the library. */
const described = ({ method, headers, body, url }) => ({ method, headers, body, path: url });

function replay(response, { body, additional }) {
  response.status(additional.status).type(additional.type).send(body);
}

async function execute(request, response) {
  const received = await forwarded(request, request.rawBody);
  await idempotency.onResponse(described(request), {
    body: received.body.toString(),
    additional: { status: received.status, type: received.headers['content-type'] },
  });
  answer(response, received);
}

async function once(request, response) {
  const earlier = await idempotency.onRequest(described(request));
  if (earlier) replay(response, earlier);
  else await execute(request, response);
}

function refuse(error, _request, response, next) {
  if (!(error instanceof IdempotencyError)) return next(error);
  response.status(STATUS_OF_ERROR[error.code] ?? 400).json({ error: error.message });
}

const app = express();
// The backend's answers have no ETag, and generating one would hash the body.
app.disable('etag');
app.post('/*path', jsonBody, once);
app.use(passOn);
app.use(refuse);

app.listen(port, host);
