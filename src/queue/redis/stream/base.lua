-- What all scripts of a stream stand on. An entry that was delivered is in the group's list of pending entries (PEL) until it
-- is done: with its owner, or with one of three consumers of ours that park what nobody holds.
local STREAM, OWN = KEYS[1], KEYS[2]
local EPOCH, HELD, LEASES, LATER, PAST = OWN .. 'epoch', OWN .. 'held', OWN .. 'leases', OWN .. 'later', OWN .. 'past'
local NOTES, IDS, DEAD, REASONS = OWN .. 'notes', OWN .. 'ids', OWN .. 'dead', OWN .. 'reasons'
local ENDING, MARKS, TOTALS, WAKE, TIDY = OWN .. 'ending', OWN .. 'marks', OWN .. 'totals', OWN .. 'wake', OWN .. 'tidy'
local GROUP = ARGV[1]
local BACK, PARKED, BURIED = 'winddown:back', 'winddown:later', 'winddown:dead'
local call = redis.call
local clock = call('TIME')
local micros = clock[1] * 1000000 + clock[2]
local now = math.floor(micros / 1000)

local function whole(number)
  return string.format('%.0f', number)
end

-- Calls with slices of a list, which may be longer than what fits onto Lua's stack.
local function slices(list, with)
  for from = 1, #list, 1000 do
    with(unpack(list, from, math.min(from + 999, #list)))
  end
end

local function lookup(command, key, fields)
  local found = {}
  slices(fields, function(...)
    for _, value in ipairs(call(command, key, ...)) do
      found[#found + 1] = value
    end
  end)
  return found
end

local function each(command, key, members)
  slices(members, function(...)
    call(command, key, ...)
  end)
end

-- The last entry that was delivered to the group, and how many are behind it, as far as the server knows.
local function last_delivered()
  for _, group in ipairs(call('XINFO', 'GROUPS', STREAM)) do
    if group[2] == GROUP then
      return group[8], group[12]
    end
  end
end

-- Whether all is over for an entry: somebody has trimmed it away, or acked it.
local function is_over(id, delivered)
  if #call('XRANGE', STREAM, id, id) == 0 then
    return true
  end
  -- What comes behind the last that was delivered is still to come.
  return #call('XPENDING', STREAM, GROUP, id, id, 1) == 0 and #call('XRANGE', STREAM, '(' .. delivered, id, 'COUNT', 1) == 0
end

-- Gives entries to another consumer; answers the set of those for which all is not over: it has them now, or they are still to come. What
-- was trimmed away leaves the PEL by this.
local function move(ids, consumer)
  local moved, delivered = {}, nil
  for from = 1, #ids, 1000 do
    local claim = { 'XCLAIM', STREAM, GROUP, consumer, '0', unpack(ids, from, math.min(from + 999, #ids)) }
    claim[#claim + 1] = 'JUSTID'
    for _, id in ipairs(call(unpack(claim))) do
      moved[id] = true
    end
  end
  for _, id in ipairs(ids) do
    if not moved[id] then
      delivered = delivered or last_delivered()
      moved[id] = not is_over(id, delivered)
    end
  end
  return moved
end

-- The ids of up to `max` entries of a consumer, from the first on, or behind one.
local function entries_of(consumer, max, behind)
  local ids = {}
  for _, entry in ipairs(call('XPENDING', STREAM, GROUP, behind and '(' .. behind or '-', '+', max, consumer)) do
    ids[#ids + 1] = entry[1]
  end
  return ids
end

local function free(ids)
  each('HDEL', HELD, ids)
  each('ZREM', LEASES, ids)
end

-- Nothing is left of entries that are done, or were trimmed away.
local function forget(ids)
  free(ids)
  each('ZREM', LATER, ids)
  each('ZREM', DEAD, ids)
  each('HDEL', PAST, ids)
  each('HDEL', NOTES, ids)
  each('HDEL', REASONS, ids)
end

local function past(id)
  local attempts, interruptions, crashes = string.match(call('HGET', PAST, id) or '', '^(%d+) (%d+) (%d+)$')
  return tonumber(attempts) or 0, tonumber(interruptions) or 0, tonumber(crashes) or 0
end

local function count(id, attempts, interruptions, crashes)
  local a, i, c = past(id)
  call('HSET', PAST, id, string.format('%d %d %d', a + attempts, i + interruptions, c + crashes))
  if interruptions > 0 then
    call('HINCRBY', TOTALS, 'interruptions', interruptions)
  end
  if crashes > 0 then
    call('HINCRBY', TOTALS, 'crashes', crashes)
  end
  return c + crashes
end

local function bury(id, reason)
  free({ id })
  if move({ id }, BURIED)[id] then
    call('ZADD', DEAD, whole(now), id)
    call('HSET', REASONS, id, reason)
  else
    forget({ id })
  end
end

-- Where an entry belongs, by the queue's own keys: somebody who meddles with the group may have it elsewhere, or nowhere.
local function home(id)
  if call('ZSCORE', LATER, id) then
    return PARKED
  elseif call('ZSCORE', DEAD, id) then
    return BURIED
  elseif call('ZSCORE', LEASES, id) then
    return string.match(call('HGET', HELD, id) or '', '^%d+ (.*)$')
  end
end

-- Puts back, untouched, what the owner claimed by calls whose answers were lost: later than ARGV[at] (empty: none was lost) and none of
-- the ARGV[at + 1] epochs that follow.
local function recover(owner, at)
  local after, known, recovered, behind = tonumber(ARGV[at]), {}, false, nil
  if not after then
    return false
  end
  for n = at + 2, at + 1 + ARGV[at + 1] do
    known[ARGV[n]] = true
  end
  repeat
    local mine, lost = entries_of(owner, 1000, behind), {}
    behind = mine[#mine]
    for n, token in ipairs(lookup('HMGET', HELD, mine)) do
      local epoch = token and string.match(token, '^%d+')
      if epoch and tonumber(epoch) > after and not known[epoch] then
        lost[#lost + 1] = mine[n]
      end
    end
    move(lost, BACK)
    free(lost)
    recovered = recovered or #lost > 0
  until #mine < 1000
  return recovered
end

-- Who waits in an XREAD looks again.
local function wake()
  call('XADD', WAKE, 'MAXLEN', '1', '*', 'wake', '1')
end

-- A consumer that is dropped takes what is pending with it, so it has to hold nothing.
local function drop_if_empty(consumer)
  if #entries_of(consumer, 1) == 0 then
    call('XGROUP', 'DELCONSUMER', STREAM, GROUP, consumer)
  end
end

-- Whether it is an ID as the server writes it: others it would refuse, or know as one that is written in another way.
local function is_entry_id(name)
  local parts = { string.match(name, '^(%d+)%-(%d+)$') }
  for _, part in ipairs(parts) do
    if #part > 20 or #part == 20 and part > '18446744073709551615' or string.find(part, '^0%d') then
      return false
    end
  end
  return #parts == 2
end

-- The entry of a job: by its name, or, where a foreign program added it, the name itself.
local function entries_named(names)
  local ids = lookup('HMGET', IDS, names)
  for at, name in ipairs(names) do
    if not ids[at] and is_entry_id(name) then
      ids[at] = name
    end
  end
  return ids
end

-- What the fields of an entry say: its name, if it is one that we gave, and the payload.
local function read(id, fields)
  local name, payload
  for at = 1, #fields, 2 do
    if fields[at] == 'payload' then
      payload = fields[at + 1]
    elseif fields[at] == 'id' then
      name = fields[at + 1]
    end
  end
  if name and call('HGET', IDS, name) ~= id then
    name = nil
  end
  return name or id, payload or false
end

-- How claims stand that are given as name, epoch and owner from `ARGV[at]` on, `width` arguments each: Y(ours), A(lready handed
-- back by it), L(ost), G(one). What is asked for twice at once is `again` the second time.
local function check(at, width, again)
  local names, tokens, fields = {}, {}, {}
  for from = at, #ARGV, width do
    names[#names + 1] = ARGV[from]
    tokens[#tokens + 1] = ARGV[from + 1] .. ' ' .. ARGV[from + 2]
  end
  local ids = entries_named(names)
  for n, id in ipairs(ids) do
    fields[n] = id or ''
  end
  local held, ends = lookup('HMGET', HELD, fields), lookup('ZMSCORE', LEASES, fields)
  local states, seen = {}, {}
  for n, id in ipairs(ids) do
    if not id then
      states[n] = 'G'
    elseif held[n] == tokens[n] then
      states[n] = seen[id] and again or ends[n] and 'Y' or 'A'
      seen[id] = true
    elseif held[n] or id ~= names[n] or #call('XPENDING', STREAM, GROUP, id, id, 1) > 0 then
      states[n] = 'L'
    else
      states[n] = 'G'
    end
  end
  return states, ids, names
end

local function told(states)
  return (string.gsub(table.concat(states), 'A', 'L'))
end
