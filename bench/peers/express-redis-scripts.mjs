// As express-redis-logged.mjs, but each of the two writes is a script, as the least that a store of executions needs: it keeps an index of the
// open keys, so that an operator can list them, and the second write replaces the record of its own execution only.
// Follows ioredis' Readme, section "Lua Scripting", and Redis' documentation of EVAL.
import express from 'express';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';
import { logged } from './lib/logged.mjs';
import { DAY_MS, onceWith, redis } from './lib/redis-once.mjs';
import { RUNNING } from './lib/stored.mjs';

redis.defineCommand('begin', {
  numberOfKeys: 2,
  lua: `
local held = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if not held then redis.call('ZADD', KEYS[2], ARGV[3], KEYS[1]) end
return held`,
});
redis.defineCommand('complete', {
  numberOfKeys: 2,
  lua: `
if redis.call('GETRANGE', KEYS[1], 0, 15) ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZREM', KEYS[2], KEYS[1])
return 1`,
});

const REVISION = RUNNING.subarray(0, 16);
const app = express();

app.use(logged);
app.post(
  '/*path',
  onceWith(
    (key) => redis.beginBuffer(key, 'open', RUNNING, DAY_MS, Date.now()),
    (key, value) => redis.complete(key, 'open', REVISION, value, DAY_MS),
  ),
);
app.use(passOn);

app.listen(port, host);
