-- ARGV: owner, time until the kill (or '-'), then which claims are lost (see `recover`).
local owner, now = ARGV[1], millis()
recover(owner, 3)
local kill = tonumber(ARGV[2])
if kill then kill = now + kill end
local mark = call('HGET', p .. 'ending', owner)
local earlier = mark and tonumber(string.match(mark, '^(%d+) '))
if earlier then kill = math.min(kill or earlier, earlier) end
name_layout()
call('HSET', p .. 'ending', owner, (kill or '-') .. ' ' .. now)

for claim, ends in pairs(claims_of(owner)) do
  if kill and ends > kill then call('ZADD', leases, kill, claim) end
end
-- Marks of owners that never said a last word: a process is gone for good within a week of its end.
local marks = call('HGETALL', p .. 'ending')
for k = 1, #marks, 2 do
  local since = tonumber(string.match(marks[k + 1], ' (%d+)$')) or 0
  if since < now - 604800000 and not next(claims_of(marks[k])) then call('HDEL', p .. 'ending', marks[k]) end
end
wake()
return now
