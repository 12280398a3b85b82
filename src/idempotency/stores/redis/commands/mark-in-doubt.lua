-- executing → in doubt, under the owner's token, which gives its lease back. A mark of 0 says that the owner itself gave up, so that whoever resolves
-- need not ask for its lease.
-- KEYS[1] record   KEYS[2] lease   ARGV[1] token (16 bytes)   ARGV[2] value of the lease   ARGV[3] changedAtMs (8 bytes, f64)
-- Result: 'ok' or 'stale'.
-- Places in the record: see codec.ts.
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'stale' end
if state ~= 'e' and state ~= 'd' then return 'stale' end
redis.call('SETRANGE', KEYS[1], 18, '\0\0\0\0')
if state == 'd' then return 'ok' end
redis.call('SETRANGE', KEYS[1], 1, 'd')
redis.call('SETRANGE', KEYS[1], 62, ARGV[3])
return 'ok'
