// Sends a request once, with two writes to Redis, or answers with what is stored. It checks nothing: a known key gets what is stored, for
// every caller and every body.
// Follows Redis' documentation of SET, options NX and GET, and ioredis' Readme, section "autopipelining".
import { Redis } from 'ioredis';
import { redisUrl } from './environment.mjs';
import { answer, forward, readBody } from './forward.mjs';
import { answerStored, RUNNING, storedForm } from './stored.mjs';

const redis = new Redis(redisUrl, { enableAutoPipelining: true });
const DAY_MS = 86_400_000;

const set = (key, value, ...more) => redis.setBuffer(`peer:${key}`, value, 'PX', DAY_MS, ...more);

async function once(request, response, body) {
  const key = request.headers['x-service-idempotency'];
  const stored = await set(key, RUNNING, 'NX', 'GET');
  if (stored) return answerStored(response, stored);
  forward(request, body, async (received) => {
    await set(key, storedForm(received));
    answer(response, received);
  });
}

/** A request handler of Express. */
export const onceOnRedis = (request, response) => readBody(request, (body) => once(request, response, body));
