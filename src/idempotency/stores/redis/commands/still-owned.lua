-- Does the owner's token still stand? On a settled record too: it is the owner's own settlement.
-- KEYS[1] record   ARGV[1] token (16 bytes)
-- Result: 'ok' or 'stale'.
-- Places in the record: see codec.ts.
if redis.call('GETRANGE', KEYS[1], 2, 17) ~= ARGV[1] then return 'stale' end
return 'ok'
