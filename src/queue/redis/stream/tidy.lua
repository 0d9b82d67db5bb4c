-- Now and then, whoever asks: what other consumers of the group left behind, and what is kept of owners that are gone.
local FEW = 100

-- Entries without a lease of ours, as another program's consumer holds them, or as keys that were lost leave them.
local function adopt(gone_after)
  local behind = call('HGET', TIDY, 'behind')
  local range = call('XPENDING', STREAM, GROUP, 'IDLE', gone_after, behind and '(' .. behind or '-', '+', FEW)
  local adopted, dropped = {}, {}
  for _, entry in ipairs(range) do
    local id, consumer = entry[1], entry[2]
    local ours = consumer == BACK
      or consumer == PARKED and call('ZSCORE', LATER, id)
      or consumer == BURIED and call('ZSCORE', DEAD, id)
      or call('ZSCORE', LEASES, id)
    if not ours then
      if move({ id }, BACK)[id] then
        free({ id })
        adopted[#adopted + 1] = id
        if consumer ~= PARKED and consumer ~= BURIED then
          count(id, 0, 0, 1)
        end
      else
        forget({ id })
      end
    end
  end
  if #range < FEW then
    call('HDEL', TIDY, 'behind')
  else
    call('HSET', TIDY, 'behind', range[FEW][1])
  end
end

local function tidy(gone_after)
  if tonumber(call('HGET', TIDY, 'next') or 0) > now then
    return
  end
  call('HSET', TIDY, 'next', whole(now + 5000))
  adopt(gone_after)
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
