#!lua flags=allow-oom
-- The record under one revision, or nothing -> a record or nothing, and what goes along.
--
-- KEYS[1]  record
-- KEYS[2]  index of the partition's open records
-- KEYS[3]  lease
-- KEYS[4]  progress of a copy, as in create.lua
-- KEYS[5]  exists while the token is void (5 to 7 only with ARGV[8] to ARGV[13])
-- KEYS[6]  audit trail, a list
-- KEYS[7]  numbers of resolutions, a hash
-- ARGV[1]  the revision that must be there, 16 bytes; '' for nothing
-- ARGV[2]  the new record; '' for nothing
-- ARGV[3]  its lifetime in milliseconds; '' leaves it as it is
-- ARGV[4]  the entry in the index
-- ARGV[5]  the score of the entry; '' if the record is not open
-- ARGV[6]  '1' if a WAIT follows
-- ARGV[7]  value of the lease that ends, whatever happens; '' for none
-- ARGV[8]  '1' to refuse while the lease exists
-- ARGV[9]  '1' to refuse also if the partition takes no starts
-- ARGV[10] how long the token is voided in milliseconds, whatever happens; '' does not void it
-- ARGV[11] the audit record; '' for none
-- ARGV[12] how long the audit trail is kept, in milliseconds
-- ARGV[13] the field of the hash that is counted; '' for none
--          Of ARGV[5] to ARGV[13], those behind the last one that is not '' are not sent.
-- Result:  nil  it was written, or this very record was there already
--          0    refused, and nothing is there
--          otherwise what is there, as in create.lua
--          error CLOSED: nothing was written
if (ARGV[7] or '') ~= '' and redis.call('GET', KEYS[3]) == ARGV[7] then redis.call('DEL', KEYS[3]) end
if (ARGV[10] or '') ~= '' then redis.call('SET', KEYS[5], '1', 'PX', ARGV[10]) end
local revision = redis.call('GETRANGE', KEYS[1], '1', '16')
local isExpected
if ARGV[1] == '' then
  isExpected = revision == '' and redis.call('EXISTS', KEYS[1]) == 0
else
  isExpected = revision == ARGV[1]
end
if not isExpected or (ARGV[8] == '1' and redis.call('EXISTS', KEYS[3]) == 1) then
  local held = redis.call('GET', KEYS[1])
  if not held then return 0 end
  if ARGV[6] == '1' and held ~= '' then redis.call('SETRANGE', KEYS[1], '0', string.sub(held, 1, 1)) end
  if #revision == 16 and revision == string.sub(ARGV[2], 2, 17) then return false end
  if string.byte(held) ~= 111 then return held end
  return { held, redis.call('PTTL', KEYS[1]), redis.call('EXISTS', KEYS[3]) }
end
local closed = redis.call('GETRANGE', KEYS[4], '0', '0')
if closed ~= '' and closed ~= 'n' and (closed ~= 's' or ARGV[9] == '1') then return redis.error_reply('CLOSED store') end
if (ARGV[11] or '') ~= '' then
  redis.call('RPUSH', KEYS[6], ARGV[11])
  redis.call('PEXPIRE', KEYS[6], ARGV[12])
  if (ARGV[13] or '') ~= '' then redis.pcall('HINCRBY', KEYS[7], ARGV[13], '1') end
end
if ARGV[2] == '' then
  redis.call('DEL', KEYS[1])
elseif ARGV[3] == '' then
  redis.call('SET', KEYS[1], ARGV[2], 'KEEPTTL')
else
  redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
end
if (ARGV[5] or '') == '' then redis.pcall('ZREM', KEYS[2], ARGV[4]) else redis.pcall('ZADD', KEYS[2], ARGV[5], ARGV[4]) end
return false
