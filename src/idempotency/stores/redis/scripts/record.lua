-- Part of every script, see commands.ts.
-- The state of a record that is executing or in doubt, 'e' or 'd', if it is whole; 'c' or 't' for a completed one; nil for
-- anything that the gateway could not read. A script must not change such bytes: it could make them readable.
-- Places in the record: see codec.ts.
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
  -- The last text, the encryption key's id, is empty.
  if length > 0 or at ~= #record + 1 then return nil end
  return state
end
