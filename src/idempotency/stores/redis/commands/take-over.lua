-- in doubt → executing, under another token: for a second execution of the same request. Takes the lease.
-- KEYS[1] record   KEYS[2] lease   ARGV[1] the heir's token (16 bytes)   ARGV[2] fingerprint (32 bytes)
-- ARGV[3] changedAtMs (8 bytes, f64)   ARGV[4] value of the lease   ARGV[5] leaseMs, or 0 where leases live on nodes of their own
-- Result: 'ok', or 'changed' where something else stands, or nothing. Delivered twice it is 'ok' twice.
-- Places in the record: see codec.ts.
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if state == 'e' and redis.call('GETRANGE', KEYS[1], 2, 17) == ARGV[1] then return 'ok' end
if state ~= 'd' or redis.call('GETRANGE', KEYS[1], 22, 53) ~= ARGV[2] then return 'changed' end
redis.call('SETRANGE', KEYS[1], 1, 'e')
redis.call('SETRANGE', KEYS[1], 2, ARGV[1])
redis.call('SETRANGE', KEYS[1], 18, struct.pack('>I4', redis.call('PTTL', KEYS[1])))
redis.call('SETRANGE', KEYS[1], 62, ARGV[3])
if tonumber(ARGV[5]) > 0 then redis.call('SET', KEYS[2], ARGV[4], 'PX', ARGV[5], 'NX') end
return 'ok'
