#!lua
-- in doubt → executing, under another token: for a second execution of the same request. Takes the lease.
-- KEYS[1] record   KEYS[2] lease   KEYS[3] void token
-- ARGV[1] the new token (16 bytes)   ARGV[2] fingerprint (32 bytes)   ARGV[3] lifetimes (18 bytes, as in the record)
-- ARGV[4] changedAtMs (8 bytes, f64)   ARGV[5] gateway id, with its length before it   ARGV[6] inDoubtRetentionMs
-- ARGV[7] value of the lease   ARGV[8] leaseMs, or 0 if leases live on lock nodes
-- Result: 'ok'; 'changed' if the record is not in doubt with this fingerprint, or there is none. Delivered twice it is
-- 'ok' twice. Error VOIDED: the token was given up, and nothing was written.
-- Places in the record: see codec.ts.
if redis.call('EXISTS', KEYS[3]) == 1 then return redis.error_reply('VOIDED the token was given up') end
local record = redis.call('GET', KEYS[1])
if not record then return 'changed' end
local state = stateOf(record)
if not state then return redis.error_reply('UNREADABLE the record has another format') end
if state == 'e' and string.sub(record, 3, 18) == ARGV[1] then
  -- WAIT covers a connection's own writes only.
  redis.call('SETRANGE', KEYS[1], 1, 'e')
  return 'ok'
end
if state ~= 'd' or string.sub(record, 38, 69) ~= ARGV[2] then return 'changed' end
-- The gateway id is the fifth text.
local at = 86
for _ = 1, 4 do at = at + 1 + string.byte(record, at) end
local behind = at + 1 + string.byte(record, at)
local head = '\2e' .. ARGV[1] .. '\1' .. ARGV[3] .. string.sub(record, 38, 77) .. ARGV[4]
redis.call('SET', KEYS[1], head .. string.sub(record, 86, at - 1) .. ARGV[5] .. string.sub(record, behind), 'PX', ARGV[6])
if ARGV[8] ~= '0' then redis.call('SET', KEYS[2], ARGV[7], 'NX', 'PX', ARGV[8]) end
return 'ok'
