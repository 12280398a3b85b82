#!lua flags=allow-oom
-- Puts the progress of a copy into a partition.
--
-- KEYS[1]  progress: what the partition refuses, its epoch, and more, with spaces between them
-- ARGV[1]  the new progress
-- ARGV[2]  its epoch
-- ARGV[3]  '1' if it replaces only that of the epoch before, otherwise it replaces any earlier one
-- Result:  1 if the new progress is there, otherwise 0
local now = redis.call('GET', KEYS[1])
local epoch = tonumber(string.match(now or '', '^%a+ (%d+) ') or '0')
local before = tonumber(ARGV[2]) - 1
if now ~= ARGV[1] and (epoch > before or (ARGV[3] == '1' and epoch < before)) then return 0 end
-- Also if it is there already, because a WAIT that follows covers only the writes of its own connection.
redis.call('SET', KEYS[1], ARGV[1])
return 1
