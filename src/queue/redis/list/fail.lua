-- ARGV: token, id, attempts that it used, delay (or '-': it is given up), reason.
local token, id, now = ARGV[1], ARGV[2], millis()
if release(token, 2, 2) then return verdict(token, id, false) end
local a, i, c, _, checkpoint = read(call('HGET', meta, id))
write(id, a + ARGV[3], i, c, '', checkpoint)
local delay = tonumber(ARGV[4])
if not delay then
  -- Of one that was listed and is not there, at least the name is kept.
  call('HSETNX', jobs, id, '')
  call('ZADD', p .. 'dead', now, id)
  call('HSET', p .. 'reasons', id, ARGV[5])
elseif delay > 0 then
  call('ZADD', p .. 'scheduled', now + delay, id)
  if call('ZRANK', p .. 'scheduled', id) == 0 then wake() end
else
  put_back({id})
  wake()
end
return YOURS
