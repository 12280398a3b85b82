#!lua flags=no-writes
-- Reads the head of a record for a listing, without its completion.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- ARGV[1]  the largest size of a head, in bytes
-- Result:  nil if there is no record, otherwise a list of
--          1  the first ARGV[1] bytes of the record
--          2  its TTL in milliseconds
--          3  1 if KEYS[2] exists, otherwise 0
--          4  1 if the record's length fits the lengths of its fields, otherwise 0
--
-- Offsets in the record: codec.ts.
local function u32(at) return struct.unpack('>I4', redis.call('GETRANGE', KEYS[1], at, at + 3)) end
local length = redis.call('STRLEN', KEYS[1])
if length == 0 and redis.call('EXISTS', KEYS[1]) == 0 then return false end
local head = redis.call('GETRANGE', KEYS[1], 0, ARGV[1] - 1)
local at = 85
for _ = 1, 6 do at = at + 1 + (string.byte(head, at + 1) or 0) end
local state = string.sub(head, 2, 2)
-- Computes from the lengths of the fields where the record must end. State t has a status after the head. State c has a
-- status, the headers and the body, each of the two after its length. The other states have nothing.
local function ends()
  if state == 't' then return at + 2 end
  if state ~= 'c' then return at end
  if at + 6 > length then return nil end
  at = at + 6 + u32(at + 2)
  if at + 4 > length then return nil end
  return at + 4 + u32(at)
end
return { head, redis.call('PTTL', KEYS[1]), redis.call('EXISTS', KEYS[2]), ends() == length and 1 or 0 }
