-- ARGV: length, then for each claim: token, how many, their ids.
local now, kills = millis(), {}
local at, held, shorter = 2, {}, false

-- When an owner that is ending is killed; false where that is not known.
local function kill_of(owner)
  if kills[owner] == nil then
    local mark = call('HGET', p .. 'ending', owner)
    kills[owner] = mark and tonumber(string.match(mark, '^(%d+) ')) or false
  end
  return kills[owner]
end

while ARGV[at] do
  local token, n = ARGV[at], tonumber(ARGV[at + 1])
  local i, j = at + 2, at + 1 + n
  local are, claim = holds(token, i, j)
  local mine, seen = 0, {}
  for k, is in ipairs(are) do
    local id = ARGV[i + k - 1]
    if is == 1 and not seen[id] then mine, seen[id] = mine + 1, true end
    held[#held + 1] = is == 1 and YOURS or verdict(token, id, false)
  end
  if mine > 0 then
    local was = tonumber(call('ZSCORE', leases, claim) or '') or 0
    local till = now + ARGV[1]
    -- The lease is that of all jobs of one claim: for some of them it is never made shorter for the others.
    if till < was and mine < size_of(claim) then till = was end
    local _, owner = whose(claim)
    local kill = kill_of(owner or '')
    if kill then till = math.min(till, kill) end
    call('ZADD', leases, till, claim)
    shorter = shorter or till < was
  end
  at = j + 1
end
if shorter then wake() end
return held
