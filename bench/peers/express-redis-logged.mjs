// As express-redis.mjs, with what every gateway does with a request (lib/logged.mjs).
import express from 'express';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';
import { logged } from './lib/logged.mjs';
import { onceOnRedis } from './lib/redis-once.mjs';

const app = express();

app.use(logged);
app.post('/*path', onceOnRedis);
app.use(passOn);

app.listen(port, host);
