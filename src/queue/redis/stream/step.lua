-- Acks jobs and claims others. ARGV: group, owner, max, length of the lease, crashes allowed, idle time of gone consumers, which claims
-- are lost (see `recover`), claims that are done.
local owner, max, lease, max_crashes, gone_after = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local BOUND = 1000

local function ended(crashes)
  return 'its lease ran out ' .. crashes .. ' times without a word'
end

-- Where the group is gone this says so, before anything is written: it is made anew first, and what is acked then is no new job of it.
call('XPENDING', STREAM, GROUP)
local states, ids, names = check(9 + ARGV[8], 3, 'G')
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
  if #call('XINFO', 'GROUPS', STREAM) == 1 then
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

recover(owner, 7)
tidy(gone_after)

-- Delays that are over. What was not delivered yet only loses its delay.
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
        local entry, reason = call('XRANGE', STREAM, id, id)[1], ended(crashes)
        bury(id, reason)
        answer[5][#answer[5] + 1] = { (read(id, entry[2])), reason }
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
local claimed, got = {}, {}

local function take(id, fields)
  got[id] = true
  claimed[#claimed + 1] = { id, fields }
end

-- All that was ever delivered comes before what never was, in the stream's order.
local back = entries_of(BACK, max)
if #back > 0 then
  local claim = { 'XCLAIM', STREAM, GROUP, owner, '0', unpack(back) }
  for _, entry in ipairs(call(unpack(claim))) do
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
  -- What has a place of its own is new only to a group that was made anew, or set back.
  local elsewhere = {}
  for _, key in ipairs({ LATER, LEASES, DEAD }) do
    if call('EXISTS', key) == 1 then
      for at, score in ipairs(lookup('ZMSCORE', key, read_ids)) do
        elsewhere[at] = elsewhere[at] or score
      end
    end
  end
  for at, entry in ipairs(batch[1][2]) do
    local owned = elsewhere[at] and home(entry[1])
    if owned then
      move({ entry[1] }, owned)
    elseif not got[entry[1]] then
      take(entry[1], entry[2])
    end
  end
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
