-- ARGV: id. Whether it was dead.
local id = ARGV[1]
if call('ZREM', p .. 'dead', id) == 0 then return 0 end
call('HDEL', p .. 'reasons', id)
local _, i, _, _, checkpoint = read(call('HGET', meta, id))
write(id, 0, i, 0, '', checkpoint)
put_back({id})
wake()
return 1
