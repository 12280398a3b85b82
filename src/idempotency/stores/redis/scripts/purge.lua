#!lua
-- completed with a response -> completed as a tombstone, under the same token. Adds an audit record. Keeps the TTL.
--
-- KEYS[1]  record
-- KEYS[2]  audit trail, a list
-- ARGV[1]  the first 18 bytes of the record as it was read: format version, state, token. A completed record never changes
--          under its token, except by a purge
-- ARGV[2]  the tombstone
-- ARGV[3]  the audit record
-- ARGV[4]  how long the audit trail is kept, in milliseconds
-- Result:  'ok'
--          'changed'  the record does not begin with ARGV[1]
--
-- Offsets in the record: codec.ts.
if redis.call('GETRANGE', KEYS[1], 0, 17) ~= ARGV[1] then return 'changed' end
redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
redis.call('RPUSH', KEYS[2], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[4])
return 'ok'
