-- How long until something can be claimed: 0, milliseconds, or -1.
local now = millis()
-- Whatever is held has a lease, since both are made in one step; where a hand or a loss of data has taken leases away, the numbers
-- do not add up. Then the keys are gone through, some of them at each look, for claims without a lease, which are made to have run out.
local tokens = call('ZRANGE', leases, 0, 1000)
if #tokens <= 1000 then
  local counted = call('LLEN', p .. 'pending') + call('ZCARD', line) + call('ZCARD', p .. 'scheduled') + call('ZCARD', p .. 'dead')
  for _, token in ipairs(tokens) do counted = counted + call('SCARD', p .. 'h:' .. token) end
  if counted < call('HLEN', jobs) then
    local cursor = call('HGET', p .. 'state', 'cursor') or '0'
    local scanned = call('SCAN', cursor, 'MATCH', p .. 'h:*', 'COUNT', 10000)
    for _, key in ipairs(scanned[2]) do
      call('ZADD', leases, 'NX', now, string.sub(key, #p + 3))
    end
    if scanned[1] == '0' then
      call('HDEL', p .. 'state', 'cursor')
    else
      call('HSET', p .. 'state', 'cursor', scanned[1])
    end
  end
end
if call('HEXISTS', p .. 'state', 'paused') == 1 then return -1 end
if call('EXISTS', p .. 'pending', line) > 0 then return 0 end
return next_due(now)
