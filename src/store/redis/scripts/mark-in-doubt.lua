#!lua flags=allow-oom
-- executing -> in doubt, by the owner itself. Gives the lease back. A record in doubt stays in doubt. Sets the flag that the
-- owner gave up, so that the record can be resolved without waiting for a lease.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- KEYS[3]  mark of a voided token
-- ARGV[1]  token, 16 bytes
-- ARGV[2]  value of the owner's lease
-- ARGV[3]  how long the token is voided, in milliseconds; '0' does not void it
-- ARGV[4]  changedAtMs, 8 bytes, f64
-- Result:  'ok'
--          'stale'  the record has another token or is completed, or there is none
--          error UNREADABLE
--          With each of these the token is voided, if ARGV[3] says so.
--
-- Offsets in the record: codec.ts.
local start = redis.call('GETRANGE', KEYS[1], 0, 17)
if ARGV[3] ~= '0' then redis.call('SET', KEYS[3], '1', 'PX', ARGV[3]) end
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
if start == '' and redis.call('EXISTS', KEYS[1]) == 0 then return 'stale' end
if string.byte(start, 1) ~= 2 then return redis.error_reply('UNREADABLE the record has another format') end
if string.sub(start, 3, 18) ~= ARGV[1] then return 'stale' end
local state = string.sub(start, 2, 2)
if state ~= 'e' and state ~= 'd' then return 'stale' end
redis.call('SETRANGE', KEYS[1], 18, '\3')
if state == 'd' then return 'ok' end
redis.call('SETRANGE', KEYS[1], 1, 'd')
redis.call('SETRANGE', KEYS[1], 77, ARGV[4])
return 'ok'
