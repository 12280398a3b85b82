-- executing or in doubt → settled, under the owner's token, which gives its lease back; the time to live stays.
-- KEYS[1] record   KEYS[2] lease   ARGV[1] token (16 bytes)   ARGV[2] value of the lease
-- ARGV[3] state code, s or t   ARGV[4] changedAtMs (8 bytes, f64)   ARGV[5] settlement bytes
-- Result: 'ok' or 'stale'. Settling again under the same token is 'ok' and changes nothing; yet it writes, since a WAIT
-- behind it speaks of what this connection has written.
-- Places in the record: see codec.ts.
if redis.call('GET', KEYS[2]) == ARGV[2] then redis.call('DEL', KEYS[2]) end
local state = redis.call('GETRANGE', KEYS[1], 1, 1)
if redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'stale' end
if state == 's' or state == 't' then
  redis.call('SETRANGE', KEYS[1], 1, state)
  return 'ok'
end
if state ~= 'e' and state ~= 'd' then return 'stale' end
local head = redis.call('GET', KEYS[1])
local settled = string.sub(head, 1, 1) .. ARGV[3] .. string.sub(head, 3, 62) .. ARGV[4] .. string.sub(head, 71) .. ARGV[5]
redis.call('SET', KEYS[1], settled, 'KEEPTTL')
return 'ok'
