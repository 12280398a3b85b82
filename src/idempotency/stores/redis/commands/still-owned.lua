-- Does the owner's token still stand on a record that is not settled?
-- KEYS[1] record   ARGV[1] token (16 bytes)
-- Result: 'ok' or 'stale'.
-- Places in the record: see codec.ts.
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'stale' end
if state ~= 'c' and state ~= 'e' and state ~= 'd' then return 'stale' end
return 'ok'
