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
  -- The last text is the encryption key id, which must be empty.
  if length > 0 or at ~= #record + 1 then return nil end
  return state
end
