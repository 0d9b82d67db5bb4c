-- Acks, and claims. ARGV: owner, how many at most, length of the lease, how many crashes at most; which claims are lost (see `recover`); then for
-- each claim with jobs that are done: token, how many, their ids.
--
-- This runs for every job where one is done at a time, so it is sparing: `shared` (see `place.lua`) is only made where it is needed, and
-- what is hardly ever there is asked for by one EXISTS.
local p, call = KEYS[1], redis.call
local jobs, leases, pending, line = p .. 'jobs', p .. 'leases', p .. 'pending', p .. 'line'
local owner, max = ARGV[1], tonumber(ARGV[2])
local at = 7 + ARGV[6]
local rare = call('EXISTS', p .. 'meta', line, p .. 'scheduled', p .. 'ending') > 0
local held = 0

while ARGV[at] do
  local token, n = ARGV[at], tonumber(ARGV[at + 1])
  local key, i, j = p .. 'h:' .. token, at + 2, at + 1 + n
  local all
  if n == 1 then
    all = call('SREM', key, ARGV[i]) == 1
  else
    all = true
    for _, is in ipairs(call('SMISMEMBER', key, unpack(ARGV, i, j))) do all = all and is == 1 end
    if all then call('SREM', key, unpack(ARGV, i, j)) end
  end
  if all then
    if call('EXISTS', key) == 0 then call('ZREM', leases, token) end
    call('HDEL', jobs, unpack(ARGV, i, j))
    if rare then call('HDEL', p .. 'meta', unpack(ARGV, i, j)) end
    if held ~= 0 then
      for _ = i, j do held[#held + 1] = 1 end
    end
  else
    if held == 0 then
      -- All before were held: one verdict each, for as many as were asked for so far.
      held = {}
      local k = 7 + ARGV[6]
      while k < at do
        for _ = 1, tonumber(ARGV[k + 1]) do held[#held + 1] = 1 end
        k = k + 2 + ARGV[k + 1]
      end
    end
    local my = shared()
    local were = my.release(token, i, j)
    for k = 1, n do
      local id = ARGV[i + k - 1]
      if not were or were[k] == 1 then
        call('HDEL', jobs, id)
        call('HDEL', p .. 'meta', id)
        held[#held + 1] = 1
      else
        held[#held + 1] = my.verdict(token, id, false)
      end
    end
  end
  at = j + 1
end
if max == 0 then return {held} end

local state = call('HMGET', p .. 'state', 'epoch', 'paused')
local time = call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
if ARGV[5] ~= '' then
  shared().recover(owner, 5)
  rare = true
end
if state[2] or rare and call('HEXISTS', p .. 'ending', owner) == 1 then
  return {held, 0, {}, {}, 0, now, {}, -1}
end

-- What is claimed is read as a whole: of large jobs fewer go at once, or all others would be held up, and the answer come too late. Those
-- that stand first speak for all.
if max > 16 then
  local size = call('HSTRLEN', jobs, call('LINDEX', pending, 0) or '')
  if rare then
    size = math.max(size, call('HSTRLEN', jobs, string.sub(call('ZRANGE', line, 0, 0)[1] or '', 27)))
    size = math.max(size, call('HSTRLEN', jobs, call('ZRANGE', p .. 'scheduled', 0, 0)[1] or ''))
  end
  if size * max > 8000000 then max = math.max(math.floor(8000000 / size), 16) end
end

local dead = {}
if call('ZCOUNT', leases, '-inf', now) > 0 then
  shared().reclaim(now, tonumber(ARGV[4]), dead)
  rare = true
end
local ids = false
if rare then
  local due = call('ZRANGEBYSCORE', p .. 'scheduled', '-inf', now, 'LIMIT', 0, max)
  if #due > 0 then
    shared().put_back(due)
    call('ZREM', p .. 'scheduled', unpack(due))
  end
  if call('EXISTS', line) == 1 then ids = shared().take(max) end
end
ids = ids or call('LPOP', pending, max) or {}

local epoch, values, metas = 0, {}, 0
if #ids > 0 then
  -- Larger than any before, also where a failover has forgotten the last ones.
  epoch = math.max((tonumber(state[1]) or 0) + 1, micros)
  local text = string.format('%.0f', epoch)
  local token = text .. ':' .. owner
  values = call('HMGET', jobs, unpack(ids))
  if rare and call('EXISTS', p .. 'meta') == 1 then
    metas = call('HMGET', p .. 'meta', unpack(ids))
    shared().claimed_again(ids, metas)
  end
  call('SADD', p .. 'h:' .. token, unpack(ids))
  call('ZADD', leases, now + ARGV[3], token)
  call('HSET', p .. 'state', 'epoch', text)
end

-- Whoever claims and leaves something tells the next; whoever finds too little is told how long to wait.
local wait = -1
if call('EXISTS', pending, line) > 0 then
  wait = 0
  if call('LLEN', p .. 'wake') == 0 then call('LPUSH', p .. 'wake', '1') end
elseif #ids < tonumber(ARGV[2]) then
  wait = shared().next_due(now)
end
return {held, epoch, ids, values, metas, now, dead, wait}
