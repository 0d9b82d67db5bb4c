-- How many jobs there are of each kind. ARGV: group.
local summary = call('XPENDING', STREAM, GROUP)
local delivered, lag = last_delivered()
local held, oldest = { [BACK] = 0, [PARKED] = 0, [BURIED] = 0 }, nil

local function saw(id)
  local at = tonumber(string.match(id, '^%d+'))
  oldest = math.min(oldest or at, at)
end

for _, consumer in ipairs(summary[4] or {}) do
  held[consumer[1]] = tonumber(consumer[2])
  if consumer[1] ~= BURIED then
    saw(entries_of(consumer[1], 1)[1])
  end
end
local first = call('XRANGE', STREAM, '(' .. delivered, '+', 'COUNT', 1)[1]
if first then
  saw(first[1])
end
local length = call('XLEN', STREAM)
local news = first and math.min(lag or math.max(length - summary[1], 1), length) or 0
local scheduled = call('ZCARD', LATER)
local waiting = math.max(news - math.max(scheduled - held[PARKED], 0), 0)
local active = summary[1] - held[BACK] - held[PARKED] - held[BURIED]
local totals = call('HMGET', TOTALS, 'interruptions', 'crashes')
return {
  waiting + held[BACK], scheduled, active, call('ZCARD', DEAD),
  tonumber(totals[1] or 0), tonumber(totals[2] or 0), oldest and math.max(now - oldest, 0) or -1,
}
