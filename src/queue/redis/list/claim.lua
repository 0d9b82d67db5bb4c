-- What a claim needs now and then; behind `place.lua`.

-- All claims of an owner that are there, with the ends of their leases. Others' are not even handed to the script: there may be very many.
local function claims_of(owner)
  local found, cursor = {}, '0'
  local match = '*:' .. string.gsub(owner, '[*?%[%]\\]', '\\%0') .. '*'
  repeat
    local some = call('ZSCAN', leases, cursor, 'MATCH', match, 'COUNT', 100000)
    cursor = some[1]
    for k = 1, #some[2], 2 do
      -- Others' names may have this one in them.
      local _, holder = whose(some[2][k])
      if holder == owner then found[some[2][k]] = tonumber(some[2][k + 1]) end
    end
  until cursor == '0'
  return found
end

-- Puts back, untouched, what the owner claimed by calls whose answers were lost: later than ARGV[i] and none of the ARGV[i + 1] epochs that
-- follow.
local function recover(owner, i)
  local after, known = tonumber(ARGV[i]), {}
  if not after then return end
  for k = i + 2, i + 1 + ARGV[i + 1] do known[ARGV[k]] = true end
  for claim in pairs(claims_of(owner)) do
    local epoch = whose(claim)
    if tonumber(epoch) > after and not known[epoch] then
      put_back(ids_of(claim))
      forget(claim)
    end
  end
end

-- Leases that ran out, in bounded batches; a job that has crashed its holders too often is given up.
local function reclaim(now, most, dead)
  local reclaimed, bytes = 0, 0
  for _, claim in ipairs(call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 16)) do
    local ids, _, owner = ids_of(claim), whose(claim)
    local ended = call('HEXISTS', p .. 'ending', owner or '') == 1
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
    forget(claim)
    if #ids > 0 then call('HINCRBY', p .. 'state', ended and 'interruptions' or 'crashes', #ids) end
    reclaimed = reclaimed + #ids
    -- Each is read to be put back.
    if #ids > 0 then bytes = bytes + #ids * call('HSTRLEN', jobs, ids[1]) end
    if reclaimed >= 1000 or bytes > 4000000 then break end
  end
end

-- The first of the line and of the list together.
local function take(max)
  local pending = p .. 'pending'
  local placed = call('ZRANGE', line, 0, max - 1)
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

-- A hand-back that is repeated from now on is stale.
local function claimed_again(ids, metas)
  for k, text in ipairs(metas) do
    local a, i, c, last, checkpoint = read(text)
    if last ~= '' then write(ids[k], a, i, c, '', checkpoint) end
  end
end

-- How long until the next lease or delay ends; -1 where there is none.
local function next_due(now)
  local soonest = math.huge
  for _, key in ipairs({leases, p .. 'scheduled'}) do
    soonest = math.min(soonest, tonumber(call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or '') or math.huge)
  end
  return soonest < math.huge and math.max(math.floor(soonest - now), 0) or -1
end
