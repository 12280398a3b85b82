#!lua flags=allow-oom
-- Adds a record to the index of open records if it is executing or in doubt. Removes it if it is completed or absent.
--
-- Both are keys of the script: while a slot moves to another master, one of them may be there and the other here. Then Redis
-- refuses the script, and a record that is only elsewhere does not look absent.
--
-- KEYS[1]  record
-- KEYS[2]  index
-- Result:  1  it is executing or in doubt
--          0  it is not, or cannot be read
local scope = string.match(KEYS[1], '{([^}]*)}$')
local start = redis.call('GETRANGE', KEYS[1], 0, 1)
if start == '\2e' or start == '\2d' then
  redis.call('ZADD', KEYS[2], 0, scope)
  return 1
end
if start == '\2c' or start == '\2t' or redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('ZREM', KEYS[2], scope)
end
return 0
