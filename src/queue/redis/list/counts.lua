-- How many there are, what happened, and when the oldest was enqueued: of what is claimed or waits for its time, the first 1000 of each are
-- looked at, or fewer where they are large, since a payload can only be read as a whole.
local now = millis()
local pending, placed = call('LLEN', p .. 'pending'), call('ZCARD', line)
local scheduled, dead = call('ZCARD', p .. 'scheduled'), call('ZCARD', p .. 'dead')
local state = call('HMGET', p .. 'state', 'interruptions', 'crashes')
local active = math.max(call('HLEN', jobs) - pending - placed - scheduled - dead, 0)

local oldest = math.huge
local function look(ids)
  local bytes = 0
  for from = 1, #ids, 10 do
    for _, value in ipairs(call('HMGET', jobs, unpack(ids, from, math.min(from + 9, #ids)))) do
      local at = tonumber(string.match(value or '', '^%d+ (%d+) ') or '')
      if at then oldest = math.min(oldest, at) end
      bytes = bytes + #(value or '')
    end
    if bytes > 1000000 then break end
  end
end
look(call('LRANGE', p .. 'pending', 0, 0))
look(call('ZRANGE', p .. 'scheduled', 0, 999))
-- The first of each priority is the oldest of it.
local from = '-'
for _ = 1, 100 do
  local first = call('ZRANGEBYLEX', line, from, '+', 'LIMIT', 0, 1)[1]
  if not first then break end
  look({string.sub(first, 27)})
  from = '[' .. string.format('%010.0f', (tonumber(string.sub(first, 1, 10)) or 0) + 1)
end
local claimed = {}
for _, claim in ipairs(call('ZRANGE', leases, 0, 999)) do
  if #claimed >= 1000 then break end
  for _, id in ipairs(ids_of(claim)) do claimed[#claimed + 1] = id end
end
look(claimed)
return {
  pending + placed, scheduled, active, dead, tonumber(state[1] or '0'), tonumber(state[2] or '0'),
  oldest < math.huge and math.max(now - oldest, 0) or -1,
}
