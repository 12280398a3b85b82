// Express, undici and ioredis: the least that two writes of a first payout, and one question of a replay, cost with the libraries that
// oncegate uses.
// Follows Express's API reference, sections "app.post" and "app.use", and what lib/redis-once.mjs and lib/forward.mjs name.
import express from 'express';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';
import { onceOnRedis } from './lib/redis-once.mjs';

const app = express();

app.post('/*path', onceOnRedis);
app.use(passOn);

app.listen(port, host);
