-- claimed, executing or in doubt → absent, under the owner's token, which gives its lease back: surely nothing was executed.
-- KEYS[1] record   KEYS[2] lease   ARGV[1] token (16 bytes)   ARGV[2] value of the lease
-- Result: 'ok' or 'stale'.
-- Places in the record: see codec.ts.
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'stale' end
if state ~= 'c' and state ~= 'e' and state ~= 'd' then return 'stale' end
redis.call('DEL', KEYS[1])
return 'ok'
