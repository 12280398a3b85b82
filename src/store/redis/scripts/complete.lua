#!lua flags=allow-oom
-- executing or in doubt -> completed, under the owner's token. Gives the lease back. If there is no record, creates it as
-- completed. Completing again under the same token changes nothing.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- KEYS[3]  mark of a copy of the records, see copy/mark.ts; missing in a cluster
-- ARGV[1]  token, 16 bytes
-- ARGV[2]  value of the owner's lease
-- ARGV[3]  state code: 'c' or 't'
-- ARGV[4]  changedAtMs, 8 bytes, f64
-- ARGV[5]  the bytes behind the gateway id: encryption key id, status, response
-- ARGV[6]  '' if the lease is KEYS[2]. With lock nodes: '1' if the owner holds its lease there, '0' if it has lapsed
-- ARGV[7]  the whole completed record, for a scope without a record; '' in the first attempt
-- ARGV[8]  inDoubtRetentionMs of ARGV[7]
-- ARGV[9]  index of open records
-- Result:  'ok'
--          'stale'   the record has another token
--          'absent'  there is no record, and ARGV[7] is ''
--          error UNREADABLE
--
-- Offsets in the record: codec.ts.
local record = redis.call('GET', KEYS[1])
local state = record and stateOf(record)
if record and not state then return redis.error_reply('UNREADABLE the record has another format') end
local alive = ARGV[6] == '1'
if ARGV[6] == '' then
  local lease = redis.call('GET', KEYS[2])
  alive = lease ~= false
  if lease == ARGV[2] then redis.call('DEL', KEYS[2]) end
end
if not record then
  if ARGV[7] == '' then return 'absent' end
  if markOf(KEYS[3]) then
    redis.call('RPUSH', KEYS[3] .. ':log', string.match(KEYS[1], '{(%x+)}$') .. ARGV[1])
  end
  redis.call('SET', KEYS[1], ARGV[7], 'PX', ARGV[8])
  return 'ok'
end
if string.sub(record, 3, 18) ~= ARGV[1] then return 'stale' end
if state == 'c' or state == 't' then
  -- Writes the same state again, because a WAIT behind this script covers only the writes of its own connection.
  redis.call('SETRANGE', KEYS[1], 1, state)
  return 'ok'
end
local inDoubtRetentionMs = struct.unpack('>I6', record, 32)
local age = inDoubtRetentionMs - redis.call('PTTL', KEYS[1])
local flags = string.byte(record, 19)
local lifeMs = struct.unpack('>I6', record, 26) - age
local lapsed = not alive and age >= struct.unpack('>I6', record, 20)
-- A record older than its retention would expire before the merchant's next retry.
if state == 'd' or flags % 2 == 1 or lapsed or lifeMs <= 0 then
  flags = flags - flags % 2 + 1
  lifeMs = inDoubtRetentionMs
end
-- The last byte of a record without a completion is the length of the empty encryption key id, which ARGV[5] replaces.
local head = string.sub(record, 1, 1) .. ARGV[3] .. string.sub(record, 3, 18) .. string.char(flags) .. string.sub(record, 20, 77)
redis.call('SET', KEYS[1], head .. ARGV[4] .. string.sub(record, 86, -2) .. ARGV[5], 'PX', string.format('%.0f', lifeMs))
removeOpen(ARGV[9], KEYS[1])
return 'ok'
