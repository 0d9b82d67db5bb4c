-- ARGV: id. Nothing, or where it stands and what it went through.
local id = ARGV[1]
local value = call('HGET', jobs, id)
if not value then return {} end
local text = call('HGET', meta, id) or ''
if call('ZSCORE', p .. 'dead', id) then return {'dead', text} end
if call('ZSCORE', p .. 'scheduled', id) then return {'scheduled', text} end
if call('ZSCORE', line, place(value, id)) then return {'pending', text} end

-- The list is in the order of the sequence numbers: to look there takes some steps, and to look into every claim as many as there are.
local pending, mine = p .. 'pending', place(value, '')
local low, high = 0, call('LLEN', pending) - 1
while low <= high do
  local middle = math.floor((low + high) / 2)
  local other = call('LINDEX', pending, middle)
  if other == id then return {'pending', text} end
  if place(call('HGET', jobs, other), '') < mine then low = middle + 1 else high = middle - 1 end
end
return {'active', text}
