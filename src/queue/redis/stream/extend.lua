-- Makes leases end later, or sooner. ARGV: group, length, claims.
local states, ids = check(3, 3, 'Y')
local sooner = false
local length = tonumber(ARGV[2])
for at, state in ipairs(states) do
  if state == 'Y' then
    local ends = now + length
    local kill = tonumber(call('HGET', ENDING, ARGV[3 * at + 2]) or '')
    if kill and kill < ends then
      ends = kill
    end
    sooner = sooner or ends < tonumber(call('ZSCORE', LEASES, ids[at]))
    call('ZADD', LEASES, whole(ends), ids[at])
  end
end
-- Who waits for the end of a lease may expect it later.
if sooner then
  wake()
end
return told(states)
