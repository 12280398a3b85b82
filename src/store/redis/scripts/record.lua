-- stateOf(record), which is inserted into every script behind its first line (commands.ts).
--
-- record   the bytes of a record
-- Result:  'e' or 'd'  executing or in doubt, and every field before the completion is valid
--          'c' or 't'  completed; the rest is not checked
--          nil         the gateway could not read these bytes. A script must not change them, because a change could make
--                      them readable.
--
-- Offsets in the record: codec.ts.
local function stateOf(record)
  if #record <= 85 or string.byte(record, 1) ~= 2 then return nil end
  local state = string.sub(record, 2, 2)
  if state == 'c' or state == 't' then return state end
  if state ~= 'e' and state ~= 'd' or string.byte(record, 19) > 3 then return nil end
  local times = struct.unpack('>d', record, 70) + struct.unpack('>d', record, 78)
  if times - times ~= 0 then return nil end
  local at, length = 86, 0
  for _ = 1, 6 do
    length = string.byte(record, at)
    if not length then return nil end
    at = at + 1 + length
  end
  -- The last text is the encryption key id, which is empty without a completion.
  if length > 0 or at ~= #record + 1 then return nil end
  return state
end

-- markOf(key): the state of the store's mark, see copy/mark.ts. nil if it serves: it has none, or is 'o', opened.
--
-- key      the key of the mark; nil in a cluster, whose records cannot be copied
local function markOf(key)
  local mark = key and redis.call('GET', key)
  if not mark then return nil end
  local state = string.sub(mark, 1, 1)
  if state ~= 'o' then return state end
end
local CLOSED = 'CLOSED the records are being moved to another store, or from one'

-- The index of open records: a sorted set of the scopes whose records are executing or in doubt, for the count of the keys in
-- doubt. In a cluster each slot has its own (open-index.ts).
--
-- It must not make a command fail or behave differently: so its name is no key of the script, whose absence would refuse the
-- command while a slot moves to another master, and an error (a user without the permission, another type of value) is
-- ignored. The count removes what is left too long, and open-index.ts adds what is missing.
--
-- index    the name of the index
-- key      the key of the record
local function addOpen(index, key) redis.pcall('ZADD', index, 0, string.sub(key, -65, -2)) end
local function removeOpen(index, key) redis.pcall('ZREM', index, string.sub(key, -65, -2)) end
