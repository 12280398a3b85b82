// Sends a request once, with two writes to Redis, or answers with what is stored. It checks nothing: a known key gets what is stored, for
// every caller and every body.
// Follows Redis' documentation of SET, options NX and GET, and ioredis' Readme, section "autopipelining".
import { Redis } from 'ioredis';
import { redisUrl } from './environment.mjs';
import { answer, forward, readBody } from './forward.mjs';
import { answerStored, RUNNING, storedForm } from './stored.mjs';

export const redis = new Redis(redisUrl, { enableAutoPipelining: true });
export const DAY_MS = 86_400_000;

/**
 * A request handler of Express.
 *
 * @param start resolves to what is stored under a key, or else writes
 * @param complete writes the answer
 */
export const onceWith = (start, complete) => (request, response) =>
  readBody(request, async (body) => {
    const key = `peer:${request.headers['x-service-idempotency']}`;
    const stored = await start(key);
    if (stored) return answerStored(response, stored);
    forward(request, body, async (received) => {
      await complete(key, storedForm(received));
      answer(response, received);
    });
  });

export const onceOnRedis = onceWith(
  (key) => redis.setBuffer(key, RUNNING, 'PX', DAY_MS, 'NX', 'GET'),
  (key, value) => redis.set(key, value, 'PX', DAY_MS),
);
