#!lua
-- Notes the day on which secret keys were used. An earlier day never replaces a later one, because gateways' clocks differ.
--
-- KEYS[1]  keys
-- KEYS[2]  days: a hash of 'MERCHANT ID' to a day
-- ARGV[1]  the day, such as 2026-11-23
-- ARGV[2]  field of a key; more may follow. Those that are not in the list are ignored
-- Result:  'ok'
for i = 2, #ARGV do
  local before = redis.call('HGET', KEYS[2], ARGV[i])
  if (not before or before < ARGV[1]) and redis.call('HEXISTS', KEYS[1], ARGV[i]) == 1 then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[1])
  end
end
return 'ok'
