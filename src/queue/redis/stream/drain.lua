-- Marks an owner as ending, or takes the mark away. ARGV: group, owner, "begin" or "end"; to begin, time until the kill (empty: not
-- known), then which claims are lost (see `recover`).
local owner = ARGV[2]
local KEPT = 3600 * 1000
if ARGV[3] == 'end' then
  call('HDEL', ENDING, owner)
  call('ZREM', MARKS, owner)
  drop_if_empty(owner)
  return 0
end
recover(owner, 5)
local kill, kill_in = tonumber(call('HGET', ENDING, owner) or ''), tonumber(ARGV[4])
if kill_in then
  kill = math.min(kill or now + kill_in, now + kill_in)
end
call('HSET', ENDING, owner, kill and whole(kill) or '-')
call('ZADD', MARKS, whole((kill or now) + KEPT), owner)
wake()
if not kill then
  return now
end
local behind
repeat
  local mine = entries_of(owner, 1000, behind)
  behind = mine[#mine]
  local leases = {}
  for at, id in ipairs(mine) do
    leases[2 * at - 1], leases[2 * at] = whole(kill), id
  end
  slices(leases, function(...)
    call('ZADD', LEASES, 'XX', 'LT', ...)
  end)
until #mine < 1000
return now
