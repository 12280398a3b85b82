#!lua flags=allow-oom
-- Writes a completed record's state again, so that a WAIT behind this script covers the record: WAIT covers a
-- connection's own writes only, and a replay may have been stored by another gateway.
-- KEYS[1] record   ARGV[1] the start of the record as it was seen: format version, state, token (18 bytes)
-- Result: 'ok' or 'changed'.
-- Places in the record: see codec.ts.
if redis.call('GETRANGE', KEYS[1], 0, 17) ~= ARGV[1] then return 'changed' end
redis.call('SETRANGE', KEYS[1], 1, string.sub(ARGV[1], 2, 2))
return 'ok'
