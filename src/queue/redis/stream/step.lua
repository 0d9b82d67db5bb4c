-- Acks jobs and claims others. ARGV: group, owner, max, length of the lease, crashes allowed, idle time of gone consumers, the
-- last epoch that the owner knows (empty: all of them), claims that are done.
local owner, max, lease, max_crashes, gone_after, known = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6], ARGV[7]
local BOUND = 1000

local function ended(crashes)
  return 'its lease ran out ' .. crashes .. ' times without a word'
end

-- Where the group is gone this says so, before anything is written.
if max > 0 then
  call('XPENDING', STREAM, GROUP)
end
local states, ids, names = check(8, 3, 'G')
local done, called = {}, {}
for at, state in ipairs(states) do
  if state == 'Y' then
    done[#done + 1] = ids[at]
    if names[at] ~= ids[at] then
      called[#called + 1] = names[at]
    end
  end
end
if #done > 0 then
  slices(done, function(...)
    call('XACK', STREAM, GROUP, ...)
  end)
  -- Other groups may have still to read it.
  if call('EXISTS', STREAM) == 1 and #call('XINFO', 'GROUPS', STREAM) == 1 then
    each('XDEL', STREAM, done)
  end
  free(done)
  each('HDEL', PAST, done)
  each('HDEL', NOTES, done)
  each('HDEL', IDS, called)
end
local answer = { told(states), '0', now, {}, {} }
if max == 0 or call('HEXISTS', ENDING, owner) == 1 then
  return answer
end

-- What an answer brought that was lost: nobody has seen it, so it counts nothing.
if known ~= '' then
  local unseen = {}
  local mine = entries_of(owner, BOUND)
  for at, token in ipairs(lookup('HMGET', HELD, mine)) do
    if token and tonumber(string.match(token, '^%d+')) > tonumber(known) then
      unseen[#unseen + 1] = mine[at]
    end
  end
  move(unseen, BACK)
  free(unseen)
end

tidy(gone_after)

-- Delays that are over. What is not moved was not delivered yet, and only loses its delay, or was trimmed away.
local due = call('ZRANGEBYSCORE', LATER, '-inf', whole(now), 'LIMIT', 0, BOUND)
if #due > 0 then
  local moved, rest = move(due, BACK), {}
  each('ZREM', LATER, due)
  for _, id in ipairs(due) do
    if not moved[id] then
      rest[#rest + 1] = id
    end
  end
  forget(rest)
end

-- Leases that are over.
local over = call('ZRANGEBYSCORE', LEASES, '-inf', whole(now), 'LIMIT', 0, BOUND)
if #over > 0 then
  local tokens, moved, owners = lookup('HMGET', HELD, over), move(over, BACK), {}
  free(over)
  for at, id in ipairs(over) do
    local holder = string.match(tokens[at] or '', '^%d+ (.*)$') or ''
    owners[holder] = true
    if not moved[id] then
      forget({ id })
    elseif call('HEXISTS', ENDING, holder) == 1 then
      count(id, 0, 1, 0)
    else
      local crashes = count(id, 0, 0, 1)
      if crashes > max_crashes then
        bury(id, ended(crashes))
        answer[5][#answer[5] + 1] = id
      end
    end
  end
  for holder in pairs(owners) do
    if holder ~= owner then
      drop_if_empty(holder)
    end
  end
end

max = math.min(max, BOUND)
local claimed, news = {}, 0

local function take(id, fields)
  claimed[#claimed + 1] = { id, fields }
end

-- All that was ever delivered comes before what never was, in the stream's order.
local back = entries_of(BACK, max)
if #back > 0 then
  local claim = { 'XCLAIM', STREAM, GROUP, owner, '0', unpack(back) }
  local got = {}
  for _, entry in ipairs(call(unpack(claim))) do
    got[entry[1]] = true
    take(entry[1], entry[2])
  end
  for _, id in ipairs(back) do
    if not got[id] then
      forget({ id })
    end
  end
end
for _ = 1, BOUND do
  local batch = #claimed < max and call('XREADGROUP', 'GROUP', GROUP, owner, 'COUNT', max - #claimed, 'STREAMS', STREAM, '>')
  if not batch then
    break
  end
  local read_ids = {}
  for at, entry in ipairs(batch[1][2]) do
    read_ids[at] = entry[1]
  end
  local delayed, delays = {}, lookup('ZMSCORE', LATER, read_ids)
  for at, entry in ipairs(batch[1][2]) do
    if delays[at] then
      delayed[#delayed + 1] = entry[1]
    else
      take(entry[1], entry[2])
    end
  end
  move(delayed, PARKED)
end
if #claimed == 0 then
  return answer
end

local epoch = whole(math.max(tonumber(call('GET', EPOCH) or 0) + 1, micros))
call('SET', EPOCH, epoch)
answer[2] = epoch
local held, leases, taken, ends = {}, {}, {}, whole(now + lease)
for at, entry in ipairs(claimed) do
  taken[at] = entry[1]
  held[2 * at - 1], held[2 * at] = entry[1], epoch .. ' ' .. owner
  leases[2 * at - 1], leases[2 * at] = ends, entry[1]
end
each('HSET', HELD, held)
each('ZADD', LEASES, leases)
local pasts, notes = lookup('HMGET', PAST, taken), lookup('HMGET', NOTES, taken)
for at, entry in ipairs(claimed) do
  local name, payload = read(entry[1], entry[2])
  answer[4][at] = { entry[1], name, payload, pasts[at], notes[at] }
end
return answer
