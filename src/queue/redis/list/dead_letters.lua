-- ARGV: how many at most. For each: id, reason, value, meta, age.
local now, all = millis(), {}
local dead = call('ZRANGE', p .. 'dead', 0, ARGV[1] - 1, 'WITHSCORES')
for k = 1, #dead, 2 do
  local id = dead[k]
  all[#all + 1] = {
    id, call('HGET', p .. 'reasons', id), call('HGET', jobs, id), call('HGET', meta, id),
    math.max(now - tonumber(dead[k + 1]), 0),
  }
end
return all
