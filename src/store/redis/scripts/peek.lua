#!lua flags=no-writes
-- Says what the record means, and changes nothing. Works while Redis is out of memory or read-only.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- ARGV[1]  fingerprint, 32 bytes
-- ARGV[2]  '1' if the lease is KEYS[2], '0' if lock nodes hold the leases
-- Result:  nil  there is no record
--          1    executing, and the owner is alive
--          otherwise the record. If it is executing with this fingerprint, KEYS[2] shows no living owner; with lock nodes
--          the caller must ask them.
--
-- Offsets in the record: codec.ts.
local record = redis.call('GET', KEYS[1])
if not record then return false end
if stateOf(record) ~= 'e' or string.sub(record, 38, 69) ~= ARGV[1] then return record end
local age = struct.unpack('>I6', record, 32) - redis.call('PTTL', KEYS[1])
if age < struct.unpack('>I6', record, 20) then return 1 end
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
return record
