-- ARGV: for each claim: token, how many, their ids, whether each was begun, the checkpoint of each behind a '+' (or nothing).
local at, held, back, interruptions = 1, {}, {}, 0
while ARGV[at] do
  local token, n = ARGV[at], tonumber(ARGV[at + 1])
  local i, j = at + 2, at + 1 + n
  local were = release(token, i, j)
  local seen, metas = {}, call('HMGET', meta, unpack(ARGV, i, j))
  for k = 1, n do
    local id = ARGV[i + k - 1]
    if were and were[k] == 0 then
      held[#held + 1] = verdict(token, id, true)
    elseif seen[id] then
      held[#held + 1] = ALREADY
    else
      held[#held + 1], seen[id] = YOURS, true
      local begun, said = tonumber(ARGV[j + k]), ARGV[j + n + k]
      local a, i, c, _, checkpoint = read(metas[k])
      if said ~= '' then checkpoint = said end
      interruptions = interruptions + begun
      back[#back + 1] = id
      -- The token tells a repeated hand-back from a stale one; the next claim takes it away.
      write(id, a, i + begun, c, token, checkpoint)
    end
  end
  at = j + 2 * n + 1
end
put_back(back)
if interruptions > 0 then call('HINCRBY', p .. 'state', 'interruptions', interruptions) end
if #back > 0 then wake() end
return held
