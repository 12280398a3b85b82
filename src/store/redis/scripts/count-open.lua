#!lua flags=no-writes
-- Counts the keys in doubt in a part of an index of open records.
--
-- KEYS[1]  index
-- ARGV[1]  what the name of a record has before its scope; behind it there is a brace
-- ARGV[2]  the last scope of the part before; '' for the first part
-- ARGV[3]  how many scopes a part has
-- ARGV[4]  '1' if the leases are beside the records, '0' if lock nodes hold them
-- Result:  a list of
--          1  the last scope of this part; '' if the index has no more
--          2  for each operation: its name, the number of keys in doubt, how many of them are executing with a dead owner, and
--             createdAtMs of the oldest, 8 bytes, f64
--          3  for each executing record whose lease the caller must ask the lock nodes for: scope, operation, createdAtMs
--          4  the scopes that have no open record here: for correct-index.lua
--
-- Offsets in the record: codec.ts. A record that cannot be read is not counted.
local scopes = redis.call('ZRANGE', KEYS[1], ARGV[2] == '' and '-' or '(' .. ARGV[2], '+', 'BYLEX', 'LIMIT', 0, ARGV[3])
local places, counts, unsure, closed = {}, {}, {}, {}

local function add(operation, isGone, since)
  local at = places[operation]
  if not at then
    at = #counts
    places[operation] = at
    counts[at + 1], counts[at + 2], counts[at + 3], counts[at + 4] = operation, 0, 0, since
  end
  counts[at + 2] = counts[at + 2] + 1
  if isGone then counts[at + 3] = counts[at + 3] + 1 end
  if struct.unpack('>d', since) < struct.unpack('>d', counts[at + 4]) then counts[at + 4] = since end
end

for _, scope in ipairs(scopes) do
  local key = ARGV[1] .. scope .. '}'
  -- The head up to the end of the second text.
  local head = redis.pcall('GETRANGE', key, 0, 596)
  if type(head) == 'table' then
    if not string.find(head.err, 'WRONGTYPE', 1, true) then return head end
    head = '?'
  end
  local state = string.sub(head, 2, 2)
  if head == '' and redis.call('EXISTS', key) == 0 or string.byte(head, 1) == 2 and (state == 'c' or state == 't') then
    closed[#closed + 1] = scope
  elseif string.byte(head, 1) == 2 and #head > 87 and (state == 'e' or state == 'd') then
    local at = 87 + string.byte(head, 86)
    local operation = string.sub(head, at + 1, at + (string.byte(head, at) or 0))
    local since = string.sub(head, 70, 77)
    if state == 'd' then
      add(operation, false, since)
    elseif struct.unpack('>I6', head, 32) - redis.call('PTTL', key) >= struct.unpack('>I6', head, 20) then
      if ARGV[4] == '0' then
        unsure[#unsure + 1], unsure[#unsure + 2], unsure[#unsure + 3] = scope, operation, since
      elseif redis.call('EXISTS', key .. ':lease') == 0 then
        add(operation, true, since)
      end
    end
  end
end
return { #scopes < tonumber(ARGV[3]) and '' or scopes[#scopes], counts, unsure, closed }
