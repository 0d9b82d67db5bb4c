-- Whether there is something to claim that was delivered before, else when there will be, and behind which entries news would come.
-- ARGV: group, idle time of gone consumers.
tidy(ARGV[2])
local ready = #entries_of(BACK, 1)
local wait = -1
for _, key in ipairs({ LEASES, LATER }) do
  local first = call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
  if first then
    local left = math.max(tonumber(first) - now, 0)
    wait = wait < 0 and left or math.min(wait, left)
  end
end
local delivered = last_delivered()
local woken = call('XREVRANGE', WAKE, '+', '-', 'COUNT', 1)[1]
return { ready, wait, delivered, woken and woken[1] or '0-0' }
