-- Acks, and claims. ARGV: owner, how many at most, length of the lease, how many crashes at most; which claims are lost (see `recover`), or ''
-- where none is; then for each claim with jobs that are done: token, how many, their ids.
--
-- This runs for every job where one is done at a time, so it is sparing: `shared` (see `place.lua`) is only made where it is needed, what is
-- hardly ever there is asked for by one EXISTS, and numbers stay the texts that commands take and give.
local p, call = KEYS[1], redis.call
local jobs, leases, pending, line = p .. 'jobs', p .. 'leases', p .. 'pending', p .. 'line'
local rare = call('EXISTS', p .. 'meta', line, p .. 'scheduled', p .. 'ending', p .. 'paused') > 0
local first = ARGV[5] == '' and 6 or 7 + ARGV[6]
local held, at = 0, first

while ARGV[at] do
  local token, n = ARGV[at], tonumber(ARGV[at + 1])
  local i, j = at + 2, at + 1 + n
  -- Of a claim of a single job there is no set (see `ids_of`).
  local single = n == 1 and call('ZREM', leases, token .. '\n' .. ARGV[i]) == 1
  local key, all = not single and p .. 'h:' .. token, true
  if n > 1 then
    for _, is in ipairs(call('SMISMEMBER', key, unpack(ARGV, i, j))) do all = all and is == 1 end
  elseif key then
    all = call('SREM', key, ARGV[i]) == 1
  end
  if all then
    local deleted = n == 1 and call('HDEL', jobs, ARGV[i]) or call('HDEL', jobs, unpack(ARGV, i, j))
    if rare then call('HDEL', p .. 'meta', unpack(ARGV, i, j)) end
    if n > 1 and deleted == n and call('SCARD', key) == n then
      -- None was named twice, so these are all of the claim.
      call('DEL', key)
      call('ZREM', leases, token)
    elseif key then
      if n > 1 then call('SREM', key, unpack(ARGV, i, j)) end
      if call('EXISTS', key) == 0 then call('ZREM', leases, token) end
    end
    if held ~= 0 then
      for _ = i, j do held[#held + 1] = 1 end
    end
  else
    if held == 0 then
      -- All before were held: one verdict each, for as many as were asked for so far.
      held = {}
      local k = first
      while k < at do
        for _ = 1, tonumber(ARGV[k + 1]) do held[#held + 1] = 1 end
        k = k + 2 + ARGV[k + 1]
      end
    end
    local my = shared()
    local were = my.release(token, i, j)
    for k = 1, n do
      local id = ARGV[i + k - 1]
      -- Nothing where all were: that is a claim of a single job, which is named more than once here.
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
local max = tonumber(ARGV[2])
if max == 0 then return held end

local time = call('TIME')
local micros = string.sub('00000' .. time[2], -6)
local now = time[1] .. string.sub(micros, 1, 3)
micros = time[1] .. micros
if first > 6 then
  shared().recover(ARGV[1], 5)
  rare = true
end
if rare and (call('EXISTS', p .. 'paused') == 1 or call('HEXISTS', p .. 'ending', ARGV[1]) == 1) then
  return {held, 0, tonumber(now), -1}
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

local dead = 0
if call('ZCOUNT', leases, '-inf', now) > 0 then
  dead = {}
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
if not ids then
  if max == 1 then ids = {call('LPOP', pending) or nil} else ids = call('LPOP', pending, max) or {} end
end

local epoch, values, metas = micros, {}, 0
if #ids > 0 then
  -- Larger than any before, also where a failover has forgotten the last ones.
  local last = call('SET', p .. 'epoch', epoch, 'GET')
  if last and (#last ~= #epoch or last >= epoch) then
    local number = tonumber(last) or 0
    -- What cannot be counted on from there was no epoch.
    if not (number < 9e15) then number = 0 end
    epoch = string.format('%.0f', math.max(number + 1, epoch))
    call('SET', p .. 'epoch', epoch)
  end
  local claim, till = epoch .. ':' .. ARGV[1], string.format('%d', now + ARGV[3])
  if #ids == 1 then
    values = {call('HGET', jobs, ids[1])}
    claim = claim .. '\n' .. ids[1]
  else
    values = call('HMGET', jobs, unpack(ids))
    call('SADD', p .. 'h:' .. claim, unpack(ids))
  end
  call('ZADD', leases, till, claim)
  if rare and call('EXISTS', p .. 'meta') == 1 then
    metas = call('HMGET', p .. 'meta', unpack(ids))
    shared().claimed_again(ids, metas)
  end
end

-- Whoever claims and leaves something tells the next, unless a token does already; whoever finds too little is told how long to wait.
local wait, asked = '-1', tonumber(ARGV[2])
if not (#ids == asked and call('EXISTS', p .. 'wake') == 1) then
  if call('EXISTS', pending, line) > 0 then
    wait = '0'
    if call('EXISTS', p .. 'wake') == 0 then call('LPUSH', p .. 'wake', '1') end
  elseif #ids < asked then
    wait = shared().next_due(now)
  end
end
if #ids == 0 and dead == 0 then return {held, 0, tonumber(now), tonumber(wait)} end
-- One job that has gone through nothing is one text: a list takes both sides longer.
if #ids == 1 and held == 0 and dead == 0 and metas == 0 and values[1] and not string.find(ids[1], '\n', 1, true) then
  return now .. ' ' .. wait .. ' ' .. epoch .. ' ' .. ids[1] .. '\n' .. values[1]
end
return {held, tonumber(epoch), tonumber(now), tonumber(wait), ids, values, metas, dead}
