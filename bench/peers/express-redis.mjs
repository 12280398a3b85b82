// Express, undici and ioredis: the least that two writes of a first payout, and one question of a replay, cost with the libraries that
// oncegate uses. It checks nothing: a known key gets what is stored, for every caller and every body.
// Follows Redis' documentation of SET, options NX and GET, ioredis' Readme, section "autopipelining", and undici's documentation as
// named in lib/forward.mjs.
import express from 'express';
import { Redis } from 'ioredis';
import { host, port, redisUrl } from './lib/environment.mjs';
import { answer, forward, passOn, readBody } from './lib/forward.mjs';

const redis = new Redis(redisUrl, { enableAutoPipelining: true });
/** As long as a record of oncegate while its request runs. */
const RUNNING = Buffer.alloc(200, '.');
const DAY_MS = 86_400_000;

const set = (key, value, ...more) => redis.setBuffer(`peer:${key}`, value, 'PX', DAY_MS, ...more);

function replay(response, stored) {
  const end = stored.indexOf('\n');
  if (end < 0) return answer(response, { status: 409, headers: {}, body: '' });
  const { status, headers } = JSON.parse(stored.latin1Slice(0, end));
  answer(response, { status, headers, body: stored.subarray(end + 1) });
}

async function once(request, response, body) {
  const key = request.headers['x-service-idempotency'];
  const stored = await set(key, RUNNING, 'NX', 'GET');
  if (stored) return replay(response, stored);
  forward(request, body, async (received) => {
    const { status, headers } = received;
    await set(key, Buffer.concat([Buffer.from(`${JSON.stringify({ status, headers })}\n`), received.body]));
    answer(response, received);
  });
}

const app = express();
app.post('/*path', (request, response) => readBody(request, (body) => once(request, response, body)));
app.use(passOn);

app.listen(port, host);
