-- ARGV: 'once' or '', then for each job: id, priority, delay, JSON. Says for each whether it is new.
local once, now = ARGV[1] == 'once', millis()
local last = tonumber(call('HGET', p .. 'state', 'seq') or '0') or 0
if last == 0 then
  name_layout()
  -- Where a hand has taken the number away: what is listed is in the order of the numbers.
  local tail = call('LINDEX', p .. 'pending', -1)
  last = tonumber(string.match(tail and call('HGET', jobs, tail) or '', '^(%d+) ')) or 0
end
local seq, added, listed, told = last, {}, {}, false
if once then
  -- More than one call can add, so that they do not pile up, and not all at once: after a pause there may be a million of them.
  local old = call('ZRANGEBYSCORE', p .. 'once', '-inf', now - 604800000, 'LIMIT', 0, 2000)
  if #old > 0 then call('ZREM', p .. 'once', unpack(old)) end
end
for i = 2, #ARGV, 4 do
  local id, priority, delay = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local new = not once or call('ZADD', p .. 'once', 'NX', now, id) == 1
  local value = (seq + 1) .. ' ' .. now .. ' ' .. priority .. ' ' .. ARGV[i + 3]
  new = new and call('HSETNX', jobs, id, value) == 1
  added[#added + 1] = new and 1 or 0
  if new then
    seq = seq + 1
    if delay > 0 then
      call('ZADD', p .. 'scheduled', now + delay, id)
      -- Those that wait are to wait less.
      told = told or call('ZRANK', p .. 'scheduled', id) == 0
    elseif priority ~= '0' then
      call('ZADD', line, 0, place(value, id))
      told = true
    else
      listed[#listed + 1] = id
    end
  end
end
if #listed > 0 then call('RPUSH', p .. 'pending', unpack(listed)) end
if seq > last then call('HSET', p .. 'state', 'seq', seq) end
if told or #listed > 0 then wake() end
return added
