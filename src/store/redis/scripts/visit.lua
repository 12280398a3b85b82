#!lua
-- Raises the count of the store's identity, and makes the identity if there is none. Notes that a gateway in this mode uses the store.
--
-- KEYS[1]  identity: id and count, with a space between them
-- KEYS[2]  exists while a gateway in this mode uses the store
-- KEYS[3]  the same for the other mode
-- ARGV[1]  id for a store that has none, in hexadecimal digits
-- ARGV[2]  how long KEYS[2] is kept, in milliseconds
-- ARGV[3]  an id that is replaced by that of ARGV[1], or an empty text
-- Result:  the identity, and behind another space 1 if KEYS[3] exists, otherwise 0
--          error IDENTITY: it has another format, and nothing was written
local identity = redis.call('GET', KEYS[1])
local id, count = string.match(identity or ARGV[1] .. ' 0', '^(%x+) (%d+)$')
if not id then return redis.error_reply('IDENTITY the identity of the store has another format') end
if id == ARGV[3] then id = ARGV[1] end
count = string.format('%.0f', tonumber(count) + 1)
redis.call('SET', KEYS[1], id .. ' ' .. count)
redis.call('SET', KEYS[2], '1', 'PX', ARGV[2])
return id .. ' ' .. count .. ' ' .. redis.call('EXISTS', KEYS[3])
