#!lua flags=no-writes
-- What the record means, without changing it. Answers while Redis is out of memory or read-only, too.
-- KEYS[1] record   KEYS[2] lease   ARGV[1] fingerprint (32 bytes)   ARGV[2] '1' if leases live here, '0' on lock nodes
-- Result: nil if there is no record; 1 if its owner is alive; else the record. An executing record has no living owner
-- here; if leases live on lock nodes, those must be asked.
-- Places in the record: see codec.ts.
local record = redis.call('GET', KEYS[1])
if not record then return false end
if stateOf(record) ~= 'e' or string.sub(record, 38, 69) ~= ARGV[1] then return record end
local age = struct.unpack('>I6', record, 32) - redis.call('PTTL', KEYS[1])
if age < struct.unpack('>I6', record, 20) then return 1 end
if ARGV[2] == '1' and redis.call('EXISTS', KEYS[2]) == 1 then return 1 end
return record
