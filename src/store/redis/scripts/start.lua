#!lua
-- absent -> executing. Takes the lease as redlock would. Marks the record of a dead owner in doubt. A start that is
-- repeated with the same token returns nil again.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- KEYS[3]  mark of a voided token
-- KEYS[4]  mark of a copy of the records, see copy/mark.ts; missing in a cluster
-- ARGV[1]  the new record
-- ARGV[2]  its inDoubtRetentionMs
-- ARGV[3]  value of the owner's lease
-- ARGV[4]  leaseMs; '0' if lock nodes hold the leases
-- ARGV[5]  '1' if a WAIT follows
-- ARGV[6]  the token of an owner whose lease no majority of lock nodes holds; '' if none is known
-- ARGV[7]  index of open records
-- Result:  nil  started
--          1    another owner is alive
--          otherwise the record as it is now. If it is executing with this fingerprint, the caller must ask the lock nodes.
--          error VOIDED: the token is voided, and the scope has no record
--          error CLOSED: the mark forbids the start, and nothing was written
--
-- Offsets in the record: codec.ts.
local mark = markOf(KEYS[4])
if mark and redis.call('EXISTS', KEYS[1]) == 0 then
  if mark ~= 'c' then return redis.error_reply(CLOSED) end
  redis.call('RPUSH', KEYS[4] .. ':log', string.match(KEYS[1], '{(%x+)}$') .. string.sub(ARGV[1], 3, 18))
end
local record = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if not record then
  if redis.call('EXISTS', KEYS[3]) == 1 then
    redis.call('DEL', KEYS[1])
    return redis.error_reply('VOIDED the token is voided')
  end
  if ARGV[4] ~= '0' then redis.call('SET', KEYS[2], ARGV[3], 'NX', 'PX', ARGV[4]) end
  addOpen(ARGV[7], KEYS[1])
  return false
end
local state = stateOf(record)
local mine = state == 'e' and string.sub(record, 3, 18) == string.sub(ARGV[1], 3, 18)
if mine or state == 'c' or state == 't' then
  -- Writes the same state again, because a WAIT behind this script covers only the writes of its own connection.
  if ARGV[5] == '1' then redis.call('SETRANGE', KEYS[1], 1, state) end
  -- The same start again: its first answer was lost.
  if mine then return false end
  return record
end
-- The gateway decodes the record, and refuses one that it cannot read.
if state ~= 'e' or string.sub(record, 38, 69) ~= string.sub(ARGV[1], 38, 69) then return record end
local age = struct.unpack('>I6', record, 32) - redis.call('PTTL', KEYS[1])
if age < struct.unpack('>I6', record, 20) then return 1 end
if ARGV[4] == '0' then
  if string.sub(record, 3, 18) ~= ARGV[6] then return record end
elseif redis.call('EXISTS', KEYS[2]) == 1 then
  return 1
end
if mark and mark ~= 'c' then return redis.error_reply(CLOSED) end
local flags = string.byte(record, 19)
redis.call('SETRANGE', KEYS[1], 1, 'd')
redis.call('SETRANGE', KEYS[1], 18, string.char(flags - flags % 2 + 1))
redis.call('SETRANGE', KEYS[1], 77, string.sub(ARGV[1], 78, 85))
return redis.call('GET', KEYS[1])
