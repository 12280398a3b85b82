#!lua flags=allow-oom
-- Removes entries from the index whose records are no longer open.
--
-- KEYS[1]  index of the partition's open records
-- KEYS[2…] records
-- ARGV     their entries in the index
-- Result:  the entries that were removed
local removed = {}
for at, entry in ipairs(ARGV) do
  local first = redis.pcall('GETRANGE', KEYS[at + 1], '0', '0')
  if first == 'c' or (first == '' and redis.call('EXISTS', KEYS[at + 1]) == 0) then
    redis.call('ZREM', KEYS[1], entry)
    removed[#removed + 1] = entry
  end
end
return removed
