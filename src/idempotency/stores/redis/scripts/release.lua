#!lua flags=allow-oom
-- executing or in doubt → absent, under the owner's token, which gives its lease back: the backend surely did not execute.
-- KEYS[1] record   KEYS[2] lease   KEYS[3] void token
-- ARGV[1] token (16 bytes)   ARGV[2] value of the lease   ARGV[3] how long the token is void, in ms; 0: it is not voided
-- Result: 'ok' or 'stale'. Both void the token.
-- Places in the record: see codec.ts.
local start = redis.call('GETRANGE', KEYS[1], 0, 17)
if ARGV[3] ~= '0' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[3]) end
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
if start == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 'stale' end
if string.byte(start, 1) ~= 2 then return redis.error_reply('UNREADABLE the record has another format') end
if string.sub(start, 3, 18) ~= ARGV[1] then return 'stale' end
local state = string.sub(start, 2, 2)
if state ~= 'e' and state ~= 'd' then return 'stale' end
redis.call('DEL', KEYS[1])
return 'ok'
