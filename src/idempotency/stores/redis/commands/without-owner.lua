-- What becomes of a record whose lease nobody holds: a claim that never began passes to the caller, an execution is in doubt.
-- Both count as alive until the state is leaseMs old, by the time to live that the mark recorded against what is left of it.
-- KEYS[1] record   ARGV[1] token that was seen (16 bytes)   ARGV[2] state code that was seen   ARGV[3] leaseMs
-- ARGV[4] the caller's token (16 bytes)   ARGV[5] changedAtMs (8 bytes, f64)
-- Result: 'alive', 'taken', 'in_doubt', or 'changed' where something else stands by now.
-- Places in the record: see codec.ts.
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if state ~= ARGV[2] or redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'changed' end
local left = redis.call('PTTL', KEYS[1])
local mark = struct.unpack('>I4', redis.call('GETRANGE', KEYS[1], 18, 21))
if mark - left < tonumber(ARGV[3]) then return 'alive' end
if state == 'e' then
  redis.call('SETRANGE', KEYS[1], 1, 'd')
  redis.call('SETRANGE', KEYS[1], 62, ARGV[5])
  return 'in_doubt'
end
redis.call('SETRANGE', KEYS[1], 2, ARGV[4])
redis.call('SETRANGE', KEYS[1], 18, struct.pack('>I4', left))
redis.call('SETRANGE', KEYS[1], 62, ARGV[5])
return 'taken'
