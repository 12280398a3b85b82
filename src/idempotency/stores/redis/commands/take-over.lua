-- in doubt → executing, under another token: for a second execution of the same request.
-- KEYS[1] record   ARGV[1] the heir's token (16 bytes)   ARGV[2] fingerprint (32 bytes)   ARGV[3] changedAtMs (8 bytes, f64)
-- Result: 'ok', or 'changed' where something else stands, or nothing. Delivered twice it is 'ok' twice.
-- Places in the record: see codec.ts.
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if state == 'e' and redis.call('GETRANGE', KEYS[1], 2, 17) == ARGV[1] then return 'ok' end
if state ~= 'd' or redis.call('GETRANGE', KEYS[1], 22, 53) ~= ARGV[2] then return 'changed' end
redis.call('SETRANGE', KEYS[1], 1, 'e')
redis.call('SETRANGE', KEYS[1], 2, ARGV[1])
redis.call('SETRANGE', KEYS[1], 18, struct.pack('>I4', redis.call('PTTL', KEYS[1])))
redis.call('SETRANGE', KEYS[1], 62, ARGV[3])
return 'ok'
