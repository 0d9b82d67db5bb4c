#!lua flags=allow-oom
-- Makes the key that names the layout, or says what is in its way. KEYS: the prefix. ARGV: kind, number, then pairs of key and type.
local p = KEYS[1]
local mine = 'winddown ' .. ARGV[1] .. ' ' .. ARGV[2]
for i = 3, #ARGV, 2 do
  local is = redis.call('TYPE', p .. ARGV[i]).ok
  if is ~= 'none' and is ~= ARGV[i + 1] then
    return {'type', p .. ARGV[i], is, ARGV[i + 1]}
  end
end
if redis.call('TYPE', p .. 'layout').ok == 'none' then
  for i = 3, #ARGV, 2 do
    if redis.call('EXISTS', p .. ARGV[i]) == 1 then
      return {'unnamed', p .. ARGV[i]}
    end
  end
  redis.call('SET', p .. 'layout', mine)
  return {'layout', mine}
end
return {'layout', redis.call('GET', p .. 'layout')}
