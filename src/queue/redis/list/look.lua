-- How long until something can be claimed: 0, milliseconds, or -1. Claims whose leases are missing are found here.
local now = millis()
if call('HLEN', p .. 'claims') ~= call('ZCARD', leases) then
  for _, token in ipairs(call('HKEYS', p .. 'claims')) do call('ZADD', leases, 'NX', now, token) end
end
if call('HEXISTS', p .. 'state', 'paused') == 1 then return -1 end
if call('EXISTS', p .. 'pending', line) > 0 then return 0 end
local soonest = math.huge
for _, key in ipairs({leases, p .. 'scheduled'}) do
  soonest = math.min(soonest, tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or '') or math.huge)
end
if soonest == math.huge then return -1 end
return math.max(soonest - now, 0)
