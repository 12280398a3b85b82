#!lua flags=no-writes
-- Reads what is there. A second variant, with other flags, is used when a WAIT follows: it touches the record.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- ARGV[1]  '1' if a WAIT follows, otherwise nothing
-- Result:  0 for nothing, otherwise a list of the record, its TTL in milliseconds, and 1 if the lease exists
local held = redis.call('GET', KEYS[1])
if not held then return 0 end
if ARGV[1] == '1' and held ~= '' then redis.call('SETRANGE', KEYS[1], '0', string.sub(held, 1, 1)) end
return { held, redis.call('PTTL', KEYS[1]), redis.call('EXISTS', KEYS[2]) }
