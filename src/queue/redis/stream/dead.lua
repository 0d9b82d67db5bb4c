-- The jobs that were given up, the oldest first. ARGV: group, how many.
local letters = {}
local range = call('ZRANGE', DEAD, 0, ARGV[2] - 1, 'WITHSCORES')
for at = 1, #range, 2 do
  local id = range[at]
  local entry = call('XRANGE', STREAM, id, id)[1]
  local name, payload = id, false
  if entry then
    name, payload = read(id, entry[2])
  end
  letters[#letters + 1] = {
    name, payload, call('HGET', REASONS, id) or '', call('HGET', PAST, id), math.max(now - tonumber(range[at + 1]), 0),
  }
end
return letters
