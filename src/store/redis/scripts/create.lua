#!lua
-- Nothing -> an open record, for a start.
--
-- KEYS[1]  record
-- KEYS[2]  index of the partition's open records
-- KEYS[3]  lease
-- KEYS[4]  progress of a copy. Its first letter: n, the partition takes writes; s, no starts; a, no writes
-- KEYS[5]  exists while the token is void
-- ARGV[1]  the record
-- ARGV[2]  its lifetime in milliseconds
-- ARGV[3]  its entry in the index
-- ARGV[4]  the score of the entry
-- ARGV[5]  '1' if a WAIT follows, otherwise nothing
-- Result:  nil  it was created, or this very record was there already
--          otherwise what is there: the record and, if it is open, a list of it, its TTL in milliseconds, and 1 if the lease exists
--          error VOIDED, error CLOSED, or that of a damaged progress: nothing was there, and nothing was written
--
-- No script of ours looks behind the first 17 bytes of a record: 'o' if it is open, and its revision. Commands get numbers as text,
-- because Redis 7.0 formats a number of Lua by printf, which costs as much as some commands.
local held = redis.call('SET', KEYS[1], ARGV[1], 'NX', 'GET', 'PX', ARGV[2])
if not held then
  if redis.call('EXISTS', KEYS[4], KEYS[5]) > 0 then
    local closed = redis.pcall('GETRANGE', KEYS[4], '0', '0')
    local refusal = redis.call('EXISTS', KEYS[5]) == 1 and 'VOIDED token' or closed.err or (closed ~= '' and closed ~= 'n' and 'CLOSED store')
    if refusal then
      redis.call('DEL', KEYS[1])
      return redis.error_reply(refusal)
    end
  end
  -- A damaged index must not keep a payout from being stored.
  redis.pcall('ZADD', KEYS[2], ARGV[4], ARGV[3])
  return false
end
-- A WAIT behind this script covers only the writes of its own connection, so this writes the first byte again.
if ARGV[5] == '1' and held ~= '' then redis.call('SETRANGE', KEYS[1], '0', string.sub(held, 1, 1)) end
if string.sub(held, 2, 17) == string.sub(ARGV[1], 2, 17) then return false end
if string.byte(held) ~= 111 then return held end
return { held, redis.call('PTTL', KEYS[1]), redis.call('EXISTS', KEYS[3]) }
