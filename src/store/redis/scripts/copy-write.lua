#!lua
-- Replaces what the store holds for a scope, for a copy.
--
-- KEYS[1]  record
-- KEYS[2]  lease
-- KEYS[3]  audit trail, a list
-- KEYS[4]  mark of the copy
-- KEYS[5]  index of open records
-- ARGV[1]  the whole mark
-- ARGV[2]  the first 19 bytes that the record must have; '' for no record, '*' for anything
-- ARGV[3]  the new record; '' for none
-- ARGV[4]  its TTL in milliseconds
-- ARGV[5]  value of the owner's lease
-- ARGV[6]  how long the owner counts as alive, in milliseconds; '0' if it does not
-- ARGV[7]  '1' to replace the audit trail
-- ARGV[8]  the TTL of the audit trail in milliseconds
-- ARGV[9…] the audit records
-- Result:  'ok'
--          'changed'     the record is not as ARGV[2] says
--          'superseded'  the mark is another one
if redis.call('GET', KEYS[4]) ~= ARGV[1] then return 'superseded' end
if ARGV[2] ~= '*' and redis.call('GETRANGE', KEYS[1], 0, 18) ~= ARGV[2] then return 'changed' end
redis.call('DEL', KEYS[1], KEYS[2])
removeOpen(KEYS[5], KEYS[1])
if ARGV[3] ~= '' then redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4]) end
local state = stateOf(ARGV[3])
if state == 'e' or state == 'd' then addOpen(KEYS[5], KEYS[1]) end
if ARGV[6] ~= '0' then redis.call('SET', KEYS[2], ARGV[5], 'PX', ARGV[6]) end
if ARGV[7] == '1' then
  redis.call('DEL', KEYS[3])
  for i = 9, #ARGV do redis.call('RPUSH', KEYS[3], ARGV[i]) end
  if #ARGV >= 9 then redis.call('PEXPIRE', KEYS[3], ARGV[8]) end
end
return 'ok'
