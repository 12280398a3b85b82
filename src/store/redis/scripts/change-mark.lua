#!lua
-- Changes the mark of a copy. See copy/mark.ts.
--
-- KEYS[1]  mark
-- KEYS[2]  log of the source's starts
-- ARGV[1]  the mark that the store must have; '' for none
-- ARGV[2]  the new mark; '' for none
-- ARGV[3]  '1' to empty the log
-- Result:  'ok'
--          'changed'  the store has another mark
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 'changed' end
if ARGV[3] == '1' then redis.call('DEL', KEYS[2]) end
if ARGV[2] == '' then redis.call('DEL', KEYS[1]) else redis.call('SET', KEYS[1], ARGV[2]) end
return 'ok'
