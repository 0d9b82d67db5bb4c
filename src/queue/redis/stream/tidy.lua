-- Now and then, whoever asks: what other consumers of the group left behind, and what is kept of owners that are gone.
local FEW = 100
local KNOWN = { IDS, HELD, PAST, NOTES, DEAD }

-- Entries without a lease of ours, as another program's consumer holds them, or as keys that were lost leave them.
local function adopt(gone_after)
  local behind = call('HGET', TIDY, 'behind')
  local range = call('XPENDING', STREAM, GROUP, 'IDLE', gone_after, behind and '(' .. behind or '-', '+', FEW)
  for _, entry in ipairs(range) do
    local id, consumer = entry[1], entry[2]
    if consumer ~= BACK and not call('ZSCORE', LEASES, id) then
      -- A delay, or a death, is not over because somebody else has had it meanwhile.
      local owned = home(id) or BACK
      if owned ~= consumer then
        free({ id })
        if not move({ id }, owned)[id] then
          forget({ id })
        elseif owned == BACK and consumer ~= PARKED and consumer ~= BURIED then
          count(id, 0, 0, 1)
        end
      end
    end
  end
  if #range < FEW then
    call('HDEL', TIDY, 'behind')
  else
    call('HSET', TIDY, 'behind', range[FEW][1])
  end
end

-- Looks at a few of the entries that are known here, key by key: for which all is over, by somebody else's doing, are forgotten.
local function weed()
  local turn, cursor = string.match(call('HGET', TIDY, 'weed') or '', '^(%d) (%d+)$')
  turn = tonumber(turn) or 1
  local key = KNOWN[turn]
  local delivered = last_delivered()
  local found = call(key == DEAD and 'ZSCAN' or 'HSCAN', key, cursor or '0', 'COUNT', FEW)
  for at = 1, #found[2], 2 do
    local id = found[2][key == IDS and at + 1 or at]
    if not call('ZSCORE', LEASES, id) and is_over(id, delivered) then
      move({ id }, BACK)
      forget({ id })
      if key == IDS then
        call('HDEL', IDS, found[2][at])
      end
    end
  end
  call('HSET', TIDY, 'weed', (found[1] == '0' and turn % #KNOWN + 1 or turn) .. ' ' .. found[1])
end

local function tidy(gone_after)
  if tonumber(call('HGET', TIDY, 'next') or 0) > now then
    return
  end
  call('HSET', TIDY, 'next', whole(now + 5000))
  adopt(gone_after)
  weed()
  for _, owner in ipairs(call('ZRANGEBYSCORE', MARKS, '-inf', whole(now), 'LIMIT', 0, FEW)) do
    if #entries_of(owner, 1) == 0 then
      call('HDEL', ENDING, owner)
      call('ZREM', MARKS, owner)
    end
  end
  for _, consumer in ipairs(call('XINFO', 'CONSUMERS', STREAM, GROUP)) do
    local name, pending, idle = consumer[2], consumer[4], consumer[6]
    if pending == 0 and idle >= tonumber(gone_after) and string.sub(name, 1, 9) ~= 'winddown:' then
      call('XGROUP', 'DELCONSUMER', STREAM, GROUP, name)
    end
  end
end
