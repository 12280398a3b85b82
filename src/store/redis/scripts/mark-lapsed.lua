#!lua flags=allow-oom
-- Sets the flag "was in doubt" of an executing record. Its lease had lapsed, so other gateways may have answered in doubt.
--
-- KEYS[1]  record
-- ARGV[1]  token, 16 bytes
-- Result:  'ok'
--          'stale'  the record has another token, or there is none
--          error UNREADABLE
--
-- Offsets in the record: codec.ts.
local record = redis.call('GET', KEYS[1])
if not record then return 'stale' end
local state = stateOf(record)
if not state then return redis.error_reply('UNREADABLE the record has another format') end
if string.sub(record, 3, 18) ~= ARGV[1] then return 'stale' end
local flags = string.byte(record, 19)
if state == 'e' and flags % 2 == 0 then redis.call('SETRANGE', KEYS[1], 18, string.char(flags + 1)) end
return 'ok'
