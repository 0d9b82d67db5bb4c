-- ARGV: id. Nothing, or where it stands and what it went through.
local id = ARGV[1]
if call('HEXISTS', jobs, id) == 0 then return {} end
local text = call('HGET', meta, id) or ''
if call('ZSCORE', p .. 'dead', id) then return {'dead', text} end
if call('ZSCORE', p .. 'scheduled', id) then return {'scheduled', text} end
for _, token in ipairs(call('ZRANGE', leases, 0, -1)) do
  if call('SISMEMBER', p .. 'h:' .. token, id) == 1 then return {'active', text} end
end
return {'pending', text}
