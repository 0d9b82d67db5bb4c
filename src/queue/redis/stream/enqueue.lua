-- Adds jobs. ARGV: group, for each its name, payload, delay. Answers 1 where it is new.
-- Where the group is gone this says so, before anything is written.
call('XPENDING', STREAM, GROUP)
local added = {}
for at = 2, #ARGV, 3 do
  local name, delay = ARGV[at], tonumber(ARGV[at + 2])
  local there = call('HGET', IDS, name)
  -- A name outlives its entry where somebody else trims the stream, or acks.
  if there and not call('ZSCORE', LEASES, there) and is_over(there, last_delivered()) then
    forget({ there })
    there = false
  end
  if there then
    added[#added + 1] = 0
  else
    local id = call('XADD', STREAM, '*', 'id', name, 'payload', ARGV[at + 1])
    call('HSET', IDS, name, id)
    if delay > 0 then
      call('ZADD', LATER, whole(now + delay), id)
    end
    added[#added + 1] = 1
  end
end
return added
