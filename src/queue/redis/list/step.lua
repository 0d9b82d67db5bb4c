-- Acks, and claims. ARGV: owner, how many at most, length of the lease, how many crashes at most, the mark of this call, how many marks of calls whose
-- answers were lost, these marks; then for each claim with jobs that are done: token, how many, their ids.
local owner, max, most = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[4])
local first = 7 + ARGV[6]
local at, had_meta = first, call('HLEN', meta) > 0
local held, count, all = {}, 0, true

while ARGV[at] do
  local token, n = ARGV[at], tonumber(ARGV[at + 1])
  local i, j = at + 2, at + 1 + n
  local were = release(token, i, j)
  if not were then
    call('HDEL', jobs, unpack(ARGV, i, j))
    if had_meta then call('HDEL', meta, unpack(ARGV, i, j)) end
    for _ = i, j do
      count = count + 1
      held[count] = YOURS
    end
  else
    all = false
    for k = 1, n do
      local id = ARGV[i + k - 1]
      count = count + 1
      if were[k] == 1 then
        call('HDEL', jobs, id)
        call('HDEL', meta, id)
        held[count] = YOURS
      else
        held[count] = verdict(token, id, false)
      end
    end
  end
  at = j + 1
end
if all then held = 0 end
if max == 0 then return {held} end

local state = call('HMGET', p .. 'state', 'epoch', 'paused')
if state[2] or call('HEXISTS', p .. 'ending', owner) == 1 then
  return {held, 0, {}, {}, 0, 0, {}, -1, {}}
end
local now, micros = millis()
local found = recover(7, first - 1)

-- Leases that ran out, in bounded batches; a job that has crashed its holders too often is given up.
local dead = {}
local function reclaim()
  local reclaimed = 0
  for _, token in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 16)) do
    local ids = call('SMEMBERS', p .. 'h:' .. token)
    local ended = call('HEXISTS', p .. 'ending', string.match(token, '^%d+:(.*)$') or '') == 1
    local metas = #ids > 0 and call('HMGET', meta, unpack(ids))
    local back = {}
    for k, id in ipairs(ids) do
      local a, i, c, _, checkpoint = read(metas[k])
      if ended then i = i + 1 else c = c + 1 end
      if not ended and c > most then
        local reason = 'its lease ran out ' .. c .. ' times without a word'
        call('ZADD', p .. 'dead', now, id)
        call('HSET', p .. 'reasons', id, reason)
        dead[#dead + 1], dead[#dead + 2] = id, reason
      else
        back[#back + 1] = id
      end
      write(id, a, i, c, '', checkpoint)
    end
    put_back(back)
    call('DEL', p .. 'h:' .. token)
    forget_claim(token)
    call('HINCRBY', p .. 'state', ended and 'interruptions' or 'crashes', #ids)
    reclaimed = reclaimed + #ids
    if reclaimed >= 1000 then break end
  end
end
local function end_of(key)
  return tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or '')
end
local lease_end, due = end_of(leases), end_of(p .. 'scheduled')
if lease_end and lease_end <= now then reclaim() end
if due and due <= now then
  local ids = call('ZRANGEBYSCORE', p .. 'scheduled', '-inf', now, 'LIMIT', 0, max)
  put_back(ids)
  call('ZREM', p .. 'scheduled', unpack(ids))
end

-- The first of the line and of the list together; nearly always the line is empty.
local function take()
  local pending = p .. 'pending'
  local placed = call('ZRANGE', line, 0, max - 1)
  if #placed == 0 then return call('LPOP', pending, max) or {} end
  local head = call('LRANGE', pending, 0, 0)[1]
  local next_listed = head and place(call('HGET', jobs, head), '')
  local ids, i, j = {}, 0, 0
  if next_listed and string.sub(placed[1], 1, 10) > '2147483647' then
    -- All that is placed is less urgent than what is listed.
    ids = call('LPOP', pending, max)
    next_listed = nil
  end
  local listed, values
  while #ids < max do
    local next_placed = placed[i + 1]
    if next_placed and (not next_listed or string.sub(next_placed, 1, 26) < next_listed) then
      i = i + 1
      ids[#ids + 1] = string.sub(next_placed, 27)
    elseif next_listed then
      if not listed then
        listed = call('LRANGE', pending, 0, max - 1)
        values = call('HMGET', jobs, unpack(listed))
      end
      j = j + 1
      ids[#ids + 1] = listed[j]
      next_listed = listed[j + 1] and place(values[j + 1], '')
    else
      break
    end
  end
  if i > 0 then call('ZREMRANGEBYRANK', line, 0, i - 1) end
  if j > 0 then call('LPOP', pending, j) end
  return ids
end
local ids = take()
local epoch, values, metas = 0, {}, 0
if #ids > 0 then
  -- Larger than any before, also where a failover has forgotten the last ones.
  epoch = math.max((tonumber(state[1]) or 0) + 1, micros)
  local token = string.format('%.0f', epoch) .. ':' .. owner
  values = call('HMGET', jobs, unpack(ids))
  if call('HLEN', meta) > 0 then
    metas = call('HMGET', meta, unpack(ids))
    for k, text in ipairs(metas) do
      local a, i, c, last, checkpoint = read(text)
      if last ~= '' then write(ids[k], a, i, c, '', checkpoint) end
    end
  end
  call('SADD', p .. 'h:' .. token, unpack(ids))
  call('ZADD', leases, now + ARGV[3], token)
  call('HSET', p .. 'claims', token, ARGV[5])
  call('HSET', p .. 'state', 'epoch', string.format('%.0f', epoch))
end

-- Whoever claims and leaves something tells the next; whoever finds too little is told how long to wait.
local wait = -1
if call('EXISTS', p .. 'pending', line) > 0 then
  wait = 0
  wake()
elseif #ids < max then
  lease_end, due = end_of(leases), end_of(p .. 'scheduled')
  local soonest = math.min(lease_end or math.huge, due or math.huge)
  if soonest < math.huge then wait = math.max(soonest - now, 0) end
end
return {held, epoch, ids, values, metas, now, dead, wait, found}
