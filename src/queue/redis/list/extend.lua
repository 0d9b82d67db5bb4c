-- ARGV: length, then for each claim: token, how many, their ids.
local now = millis()
local at, held, shorter = 2, {}, false
while ARGV[at] do
  local token, n = ARGV[at], tonumber(ARGV[at + 1])
  local key, i, j = p .. 'h:' .. token, at + 2, at + 1 + n
  local mine = 0
  for k, is in ipairs(call('SMISMEMBER', key, unpack(ARGV, i, j))) do
    mine = mine + is
    held[#held + 1] = is == 1 and YOURS or verdict(token, ARGV[i + k - 1], false)
  end
  if mine > 0 then
    local was = tonumber(call('ZSCORE', leases, token) or '') or 0
    local till = now + ARGV[1]
    -- The lease is that of all jobs of one claim: for some of them it is never made shorter for the others.
    if till < was and mine < call('SCARD', key) then till = was end
    local mark = call('HGET', p .. 'ending', string.match(token, '^%d+:(.*)$') or '')
    local kill = mark and tonumber(string.match(mark, '^(%d+) '))
    if kill then till = math.min(till, kill) end
    call('ZADD', leases, till, token)
    shorter = shorter or till < was
  end
  at = j + 1
end
if shorter then wake() end
return held
