-- Takes a job back from the dead letters. ARGV: group, its name.
local id = entries_named({ ARGV[2] })[1]
if not id or not call('ZSCORE', DEAD, id) then
  return 0
end
if not move({ id }, BACK)[id] then
  forget({ id })
  return 0
end
local _, interruptions = past(id)
call('ZREM', DEAD, id)
call('HDEL', REASONS, id)
call('HDEL', PAST, id)
if interruptions > 0 then
  call('HSET', PAST, id, '0 ' .. interruptions .. ' 0')
end
wake()
return 1
