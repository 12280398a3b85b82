#!lua
-- in doubt -> executing, under another token, for a second execution of the same request. Takes the lease. A restart
-- that is repeated with the same token returns 'ok' again.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- KEYS[3]  mark of a voided token
-- KEYS[4]  mark of a copy of the records, see copy/mark.ts; missing in a cluster
-- ARGV[1]  the new token, 16 bytes
-- ARGV[2]  fingerprint, 32 bytes
-- ARGV[3]  lifetimes, 18 bytes as in the record
-- ARGV[4]  changedAtMs, 8 bytes, f64
-- ARGV[5]  gateway id, with its length in the first byte
-- ARGV[6]  inDoubtRetentionMs
-- ARGV[7]  value of the owner's lease
-- ARGV[8]  leaseMs; '0' if lock nodes hold the leases
-- Result:  'ok'
--          'changed'  the record is not in doubt or has another fingerprint, or there is none
--          error UNREADABLE
--          error VOIDED: the token is voided, and nothing was written
--          error CLOSED: the mark forbids the restart, and nothing was written
--
-- Offsets in the record: codec.ts.
if redis.call('EXISTS', KEYS[3]) == 1 then return redis.error_reply('VOIDED the token is voided') end
local record = redis.call('GET', KEYS[1])
if not record then return 'changed' end
local state = stateOf(record)
if not state then return redis.error_reply('UNREADABLE the record has another format') end
if state == 'e' and string.sub(record, 3, 18) == ARGV[1] then
  -- Writes the same state again, because a WAIT behind this script covers only the writes of its own connection.
  redis.call('SETRANGE', KEYS[1], 1, 'e')
  return 'ok'
end
if state ~= 'd' or string.sub(record, 38, 69) ~= ARGV[2] then return 'changed' end
local mark = markOf(KEYS[4])
if mark and mark ~= 'c' then return redis.error_reply(CLOSED) end
-- The gateway id is the fifth text.
local at = 86
for _ = 1, 4 do at = at + 1 + string.byte(record, at) end
local behind = at + 1 + string.byte(record, at)
local head = '\2e' .. ARGV[1] .. '\1' .. ARGV[3] .. string.sub(record, 38, 77) .. ARGV[4]
redis.call('SET', KEYS[1], head .. string.sub(record, 86, at - 1) .. ARGV[5] .. string.sub(record, behind), 'PX', ARGV[6])
if ARGV[8] ~= '0' then redis.call('SET', KEYS[2], ARGV[7], 'NX', 'PX', ARGV[8]) end
return 'ok'
