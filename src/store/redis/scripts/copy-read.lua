#!lua flags=no-writes
-- Reads all that the store holds for a scope, for a copy.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- KEYS[3]  audit trail, a list
-- Result:  a list of
--          1  the record, or nil
--          2  its TTL in milliseconds
--          3  the TTL of the lease in milliseconds, negative if there is none
--          4  the audit records
--          5  the TTL of the audit trail in milliseconds
return {
  redis.call('GET', KEYS[1]), redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[2]),
  redis.call('LRANGE', KEYS[3], 0, -1), redis.call('PTTL', KEYS[3]),
}
