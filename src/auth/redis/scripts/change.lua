#!lua flags=allow-oom
-- Adds and replaces secret keys, if nobody has changed the list since it was read. A revocation must find room in a full Redis.
--
-- KEYS[1]  head of the list: a hash with format, version, changes (how many), keys (how many), pepperCheck
-- KEYS[2]  keys: a hash of 'MERCHANT ID' to JSON
-- ARGV[1]  the version that was read; '' if there was no list
-- ARGV[2]  a random text: the new version is the number of the change and this
-- ARGV[3]  format
-- ARGV[4]  pepperCheck
-- ARGV[5]  the most keys that are possible
-- ARGV[6], ARGV[7]  field and value of a key; more pairs may follow
-- Result:  'ok'
--          'changed'  the list has another version: nothing was written
--          error DAMAGED, FULL
local version = redis.call('HGET', KEYS[1], 'version') or ''
if version ~= ARGV[1] then return 'changed' end
local count = redis.call('HLEN', KEYS[2])
if tonumber(redis.call('HGET', KEYS[1], 'keys') or 0) ~= count then
  return redis.error_reply('DAMAGED the list has another number of keys than it should have')
end
local added = 0
for i = 6, #ARGV, 2 do
  if redis.call('HEXISTS', KEYS[2], ARGV[i]) == 0 then added = added + 1 end
end
if count + added > tonumber(ARGV[5]) then
  return redis.error_reply('FULL the list can have ' .. ARGV[5] .. ' keys')
end
for i = 6, #ARGV, 2 do redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1]) end
local changes = redis.call('HINCRBY', KEYS[1], 'changes', 1)
redis.call('HSET', KEYS[1], 'format', ARGV[3], 'version', string.format('%.0f-%s', changes, ARGV[2]), 'pepperCheck', ARGV[4],
  'keys', count + added)
return 'ok'
