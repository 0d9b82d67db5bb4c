-- Puts back, untouched, what the owner claimed by calls whose answers were lost: later than ARGV[at], and none of the ARGV[at + 1]
-- epochs that follow. Nobody has seen it, so it counts nothing.
local function recover(owner, at)
  local after, known = tonumber(ARGV[at]), {}
  if not after then
    return
  end
  for n = at + 2, at + 1 + ARGV[at + 1] do
    known[ARGV[n]] = true
  end
  local behind
  repeat
    local mine, unseen = entries_of(owner, 1000, behind), {}
    behind = mine[#mine]
    for n, token in ipairs(lookup('HMGET', HELD, mine)) do
      local epoch = token and string.match(token, '^%d+')
      if epoch and tonumber(epoch) > after and not known[epoch] then
        unseen[#unseen + 1] = mine[n]
      end
    end
    move(unseen, BACK)
    free(unseen)
  until #mine < 1000
end
