-- executing without an owner, or in doubt → settled under a new token, or absent; and an audit record. The time to live stays.
-- That nobody holds the lease was seen before; an execution counts as alive until it is leaseMs old, see without-owner.lua.
-- KEYS[1] record   KEYS[2] audit trail (list)   ARGV[1] token that was seen (16 bytes)   ARGV[2] state code that was seen
-- ARGV[3] leaseMs   ARGV[4] state code that it gets, s or t; '' for absent   ARGV[5] new token (16 bytes)
-- ARGV[6] changedAtMs (8 bytes, f64)   ARGV[7] settlement bytes   ARGV[8] audit record   ARGV[9] how long it is kept, in ms
-- Result: 'ok', 'alive', or 'changed' where something else stands by now.
-- Places in the record: see codec.ts.
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if state ~= ARGV[2] or redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'changed' end
if state ~= 'e' and state ~= 'd' then return 'changed' end
if state == 'e' then
  local mark = struct.unpack('>I4', redis.call('GETRANGE', KEYS[1], 18, 21))
  if mark - redis.call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then return 'alive' end
end
redis.call('RPUSH', KEYS[2], ARGV[8])
redis.call('PEXPIRE', KEYS[2], ARGV[9])
if ARGV[4] == '' then
  redis.call('DEL', KEYS[1])
  return 'ok'
end
local head = redis.call('GET', KEYS[1])
local settled = string.sub(head, 1, 1) .. ARGV[4] .. ARGV[5] .. string.sub(head, 19, 62) .. ARGV[6] .. string.sub(head, 71) .. ARGV[7]
redis.call('SET', KEYS[1], settled, 'KEEPTTL')
return 'ok'
