-- Marks an owner as ending, or takes the mark away. ARGV: group, owner, "begin" or "end", time until the kill (empty: not known), and
-- to begin with which claims are lost (see `recover`). Answers the clock.
local owner, kill_in = ARGV[2], tonumber(ARGV[4])
local KEPT = 3600 * 1000
if ARGV[3] == 'end' then
  call('HDEL', ENDING, owner)
  call('ZREM', MARKS, owner)
  drop_if_empty(owner)
  return 0
end
-- Where the group is gone this says so, before anything is written.
call('XPENDING', STREAM, GROUP)
local recovered = recover(owner, 5)
local kill = tonumber(call('HGET', ENDING, owner) or '')
if kill_in then
  kill = math.min(kill or now + kill_in, now + kill_in)
end
call('HSET', ENDING, owner, kill and whole(kill) or '-')
call('ZADD', MARKS, whole((kill or now) + KEPT), owner)
if recovered then
  wake()
end
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
wake()
return now
