#!lua flags=no-writes,allow-cross-slot-keys
-- Finds records that are executing or in doubt among the next keys of this server.
--
-- ARGV[1]  cursor of SCAN
-- ARGV[2]  pattern of the names of records
-- ARGV[3]  the COUNT of SCAN
-- Result:  the next cursor, and the scopes
local found = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
local scopes = { found[1] }
for _, key in ipairs(found[2]) do
  local scope = string.match(key, '{(%x+)}$')
  -- An error: the key is no record, or belongs to another master by now.
  local start = scope and redis.pcall('GETRANGE', key, 0, 1)
  if start == '\2e' or start == '\2d' then scopes[#scopes + 1] = scope end
end
return scopes
