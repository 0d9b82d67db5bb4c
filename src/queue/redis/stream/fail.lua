-- Says that a try failed. ARGV: group, what then ("later", "dead", or "unreadable": no attempt is used), delay, reason, the claim.
-- Where the group is gone this says so, before anything is counted.
call('XPENDING', STREAM, GROUP)
local states, ids = check(5, 3, 'Y')
local verdict, delay, id = ARGV[2], tonumber(ARGV[3]), ids[1]
if states[1] == 'Y' then
  if verdict ~= 'unreadable' then
    count(id, 1, 0, 0)
  end
  if verdict ~= 'later' then
    bury(id, ARGV[4])
  else
    free({ id })
    if not move({ id }, delay > 0 and PARKED or BACK)[id] then
      forget({ id })
    elseif delay > 0 then
      call('ZADD', LATER, whole(now + delay), id)
    end
    wake()
  end
end
return told(states)
