#!lua flags=allow-oom
-- executing or in doubt → completed, under the owner's token, which gives its lease back.
-- KEYS[1] record   KEYS[2] lease
-- ARGV[1] token (16 bytes)   ARGV[2] value of the lease   ARGV[3] state code, c or t   ARGV[4] changedAtMs (8 bytes, f64)
-- ARGV[5] the bytes behind the head   ARGV[6] with leases on lock nodes: '1' if the owner holds its lease, '0' if it has
-- lapsed; '' if leases live here
-- ARGV[7] the whole completed record, for when there is none; '' the first time   ARGV[8] its inDoubtRetentionMs
-- Result: 'ok', 'stale', or 'absent': there is no record, and ARGV[7] is empty. Completing again under the same token is
-- 'ok' and changes nothing; but it writes, because a WAIT behind it covers this connection's own writes only.
-- Places in the record: see codec.ts.
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
  redis.call('SET', KEYS[1], ARGV[7], 'PX', ARGV[8])
  return 'ok'
end
if string.sub(record, 3, 18) ~= ARGV[1] then return 'stale' end
if state == 'c' or state == 't' then
  redis.call('SETRANGE', KEYS[1], 1, state)
  return 'ok'
end
local inDoubtRetentionMs = struct.unpack('>I6', record, 32)
local age = inDoubtRetentionMs - redis.call('PTTL', KEYS[1])
local flags = string.byte(record, 19)
local lifeMs = struct.unpack('>I6', record, 26) - age
local lapsed = not alive and age >= struct.unpack('>I6', record, 20)
-- A record that is older than its retention must not expire before its merchant's next retry.
if state == 'd' or flags % 2 == 1 or lapsed or lifeMs <= 0 then
  flags = flags - flags % 2 + 1
  lifeMs = inDoubtRetentionMs
end
local head = string.sub(record, 1, 1) .. ARGV[3] .. string.sub(record, 3, 18) .. string.char(flags) .. string.sub(record, 20, 77)
redis.call('SET', KEYS[1], head .. ARGV[4] .. string.sub(record, 86) .. ARGV[5], 'PX', string.format('%.0f', lifeMs))
return 'ok'
