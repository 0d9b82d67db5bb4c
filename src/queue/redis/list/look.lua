-- How long until something can be claimed: 0, milliseconds, or -1.
local now = millis()
local scheduled, dead = p .. 'scheduled', p .. 'dead'

-- Goes on with a scan from where the last look has left it.
local function go_on(field, scan)
  local scanned = scan(call('HGET', p .. 'state', field) or '0')
  if scanned[1] == '0' then
    call('HDEL', p .. 'state', field)
  else
    call('HSET', p .. 'state', field, scanned[1])
  end
  return scanned[2]
end

-- Of some jobs, by name and value in turn, those that are nowhere but in `jobs`.
local function nowhere(some, claims)
  local head = call('LRANGE', p .. 'pending', 0, 0)[1]
  -- What is listed is in its order, and taken from the head: what comes before the head is not listed.
  local first = not head and math.huge or tonumber(string.match(call('HGET', jobs, head) or '', '^%d+')) or 0
  local ids, held, lost = {}, {}, {}
  for k = 1, #some, 2 do
    local id, seq, priority = some[k], string.match(some[k + 1], '^(%d+) %d+ (-?%d+) ')
    local listed = priority == '0' and tonumber(seq) >= first
    if not (listed or call('ZSCORE', scheduled, id) or call('ZSCORE', dead, id) or call('ZSCORE', line, place(some[k + 1], id))) then
      ids[#ids + 1] = id
    end
  end
  if #ids == 0 then return lost end
  for _, claim in ipairs(claims) do
    local only = string.match(claim, '\n(.*)$')
    if only then
      held[only] = true
    else
      for k, is in ipairs(call('SMISMEMBER', p .. 'h:' .. claim, unpack(ids))) do held[ids[k]] = held[ids[k]] or is == 1 end
    end
  end
  for _, id in ipairs(ids) do
    if not held[id] then lost[#lost + 1] = id end
  end
  return lost
end

-- Whatever is held has a lease, since both are made in one step; where a hand or a loss of data has taken leases away, the numbers
-- do not add up. Then the keys are gone through, some of them at each look, for claims without a lease, and the jobs for such as no claim
-- holds. Both are made claims that have run out.
local claims = call('ZRANGE', leases, 0, 1000)
if #claims <= 1000 then
  local counted = call('LLEN', p .. 'pending') + call('ZCARD', line) + call('ZCARD', scheduled) + call('ZCARD', dead)
  for _, claim in ipairs(claims) do counted = counted + size_of(claim) end
  if counted < call('HLEN', jobs) then
    local keys = go_on('cursor', function(from) return call('SCAN', from, 'MATCH', p .. 'h:*', 'COUNT', 10000) end)
    for _, key in ipairs(keys) do
      local claim = string.sub(key, #p + 3)
      if call('ZADD', leases, 'NX', now, claim) == 1 then claims[#claims + 1] = claim end
    end
    local some = go_on('job_cursor', function(from) return call('HSCAN', jobs, from, 'COUNT', 100) end)
    for _, id in ipairs(nowhere(some, claims)) do call('ZADD', leases, 'NX', now, '0:\n' .. id) end
  end
end
if call('EXISTS', p .. 'paused') == 1 then return -1 end
if call('EXISTS', p .. 'pending', line) > 0 then return 0 end
return next_due(now)
