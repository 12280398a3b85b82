#!lua flags=allow-oom
-- Writes the state of a completed record again, unchanged, so that a WAIT behind this script covers the record. WAIT covers
-- only the writes of its own connection, and another gateway may have stored the record.
--
-- KEYS[1]  record
-- ARGV[1]  the first 18 bytes of the record as it was read: format version, state, token
-- Result:  'ok'
--          'changed'  the record does not begin with ARGV[1]
--
-- Offsets in the record: codec.ts.
if redis.call('GETRANGE', KEYS[1], 0, 17) ~= ARGV[1] then return 'changed' end
redis.call('SETRANGE', KEYS[1], 1, string.sub(ARGV[1], 2, 2))
return 'ok'
