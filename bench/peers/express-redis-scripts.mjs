// As express-redis-logged.mjs, but each of the two writes is a script with the calls to Redis that oncegate's promises need, and no others.
// An index lists the open keys. A start refuses a void token, and the second write refuses the record of another execution. Both refuse a
// store that a copy has closed.
// Follows ioredis' Readme, section "Lua Scripting", and Redis' documentation of EVAL.
import express from 'express';
import { host, port } from './lib/environment.mjs';
import { passOn } from './lib/forward.mjs';
import { logged } from './lib/logged.mjs';
import { DAY_MS, onceWith, redis } from './lib/redis-once.mjs';
import { RUNNING } from './lib/stored.mjs';

redis.defineCommand('begin', {
  numberOfKeys: 4,
  lua: `
local held = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if held then return held end
if redis.call('EXISTS', KEYS[3], KEYS[4]) > 0 then return redis.error_reply('CLOSED') end
redis.call('ZADD', KEYS[2], ARGV[3], KEYS[1])
return false`,
});
redis.defineCommand('complete', {
  numberOfKeys: 3,
  lua: `
if redis.call('GETRANGE', KEYS[1], 0, 15) ~= ARGV[1] then return 0 end
if redis.call('GETRANGE', KEYS[3], 0, 0) ~= '' then return redis.error_reply('CLOSED') end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
redis.call('ZREM', KEYS[2], KEYS[1])
return 1`,
});

const REVISION = RUNNING.subarray(0, 16);
const [OPEN, COPY] = ['peer-open', 'peer-copy'];
const app = express();

app.use(logged);
app.post(
  '/*path',
  onceWith(
    (key) => redis.beginBuffer(key, OPEN, COPY, `${key}:void`, RUNNING, DAY_MS, Date.now()),
    (key, value) => redis.complete(key, OPEN, COPY, REVISION, value, DAY_MS),
  ),
);
app.use(passOn);

app.listen(port, host);
