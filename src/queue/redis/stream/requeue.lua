-- Hands jobs back. ARGV: group, for each the claim, 1 where it was begun, 1 where a checkpoint follows, the checkpoint.
local states, ids = check(2, 6, 'A')
local back = {}
for at, state in ipairs(states) do
  if state == 'Y' then
    back[#back + 1] = ids[at]
  end
end
if #back > 0 then
  local moved = move(back, BACK)
  each('ZREM', LEASES, back)
  for at, state in ipairs(states) do
    local id, given = ids[at], 6 * at - 4
    if state == 'Y' and not moved[id] then
      -- Somebody has trimmed it away, or acked it, while it was held.
      forget({ id })
      states[at] = 'G'
    elseif state == 'Y' then
      if ARGV[given + 3] == '1' then
        count(id, 0, 1, 0)
      end
      if ARGV[given + 4] == '1' then
        call('HSET', NOTES, id, ARGV[given + 5])
      end
    end
  end
  wake()
end
return table.concat(states)
