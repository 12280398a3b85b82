-- claimed → executing, under the owner's token, which takes the lease as redlock would.
-- KEYS[1] record   KEYS[2] lease   ARGV[1] token (16 bytes)   ARGV[2] changedAtMs (8 bytes, f64)
-- ARGV[3] value of the lease   ARGV[4] leaseMs, or 0 where leases live on nodes of their own
-- Result: 'ok' or 'stale'. A begin that is delivered twice is 'ok' twice: the engine begins a token once.
-- Places in the record: see codec.ts.
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'stale' end
if state == 'e' then return 'ok' end
if state ~= 'c' then return 'stale' end
redis.call('SETRANGE', KEYS[1], 1, 'e')
redis.call('SETRANGE', KEYS[1], 18, struct.pack('>I4', redis.call('PTTL', KEYS[1])))
redis.call('SETRANGE', KEYS[1], 62, ARGV[2])
if tonumber(ARGV[4]) > 0 then redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4], 'NX') end
return 'ok'
