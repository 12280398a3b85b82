#!lua
-- in doubt, or executing with a dead owner -> completed under a new token, or absent. Adds an audit record.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- KEYS[3]  audit trail, a list
-- KEYS[4]  mark of a copy of the records, see copy/mark.ts; missing in a cluster
-- ARGV[1]  the first 19 bytes of the record as it was read: format version, state, token, flags
-- ARGV[2]  '1' if the lease is KEYS[2]; '0' if the caller has asked the lock nodes
-- ARGV[3]  the new state code: 'c' or 't'; '' for absent
-- ARGV[4]  the new token, 16 bytes
-- ARGV[5]  changedAtMs, 8 bytes, f64
-- ARGV[6]  the bytes behind the gateway id: encryption key id, status, response
-- ARGV[7]  the audit record
-- ARGV[8]  how long the audit trail is kept, in milliseconds
-- ARGV[9]  index of open records
-- ARGV[10] numbers of resolutions, a hash; '' in a cluster, where the caller counts
-- ARGV[11] the field of this resolution
-- Result:  'ok'
--          'alive'    the owner may still be executing
--          'changed'  the record does not begin with ARGV[1], or is completed or unreadable
--          error CLOSED: the mark forbids the resolution, and nothing was written
--
-- Offsets in the record: codec.ts.
local record = redis.call('GET', KEYS[1])
if not record or string.sub(record, 1, 19) ~= ARGV[1] then return 'changed' end
local state = stateOf(record)
if state ~= 'e' and state ~= 'd' then return 'changed' end
local inDoubtRetentionMs = struct.unpack('>I6', record, 32)
if state == 'e' and inDoubtRetentionMs - redis.call('PTTL', KEYS[1]) < struct.unpack('>I6', record, 20) then return 'alive' end
local gaveUp = state == 'd' and string.byte(record, 19) >= 2
if not gaveUp and ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then return 'alive' end
local mark = markOf(KEYS[4])
if mark and mark ~= 'c' then return redis.error_reply(CLOSED) end
redis.call('RPUSH', KEYS[3], ARGV[7])
redis.call('PEXPIRE', KEYS[3], ARGV[8])
removeOpen(ARGV[9], KEYS[1])
-- As with the index, an error must not leave the resolution half done.
if ARGV[10] ~= '' then redis.pcall('HINCRBY', ARGV[10], ARGV[11], 1) end
if ARGV[3] == '' then
  redis.call('DEL', KEYS[1])
  return 'ok'
end
-- The last byte of a record without a completion is the length of the empty encryption key id, which ARGV[6] replaces.
local head = string.sub(record, 1, 1) .. ARGV[3] .. ARGV[4] .. '\1' .. string.sub(record, 20, 77) .. ARGV[5]
redis.call('SET', KEYS[1], head .. string.sub(record, 86, -2) .. ARGV[6], 'PX', string.format('%.0f', inDoubtRetentionMs))
return 'ok'
