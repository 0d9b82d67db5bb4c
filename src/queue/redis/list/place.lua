-- What the scripts share. KEYS[1] is what all keys begin with; see `list.rs` for the keys.
local p, call = KEYS[1], redis.call
local jobs, meta, leases, line = p .. 'jobs', p .. 'meta', p .. 'leases', p .. 'line'
local YOURS, ALREADY, LOST, GONE = 1, 2, 3, 4
local MOST = 4294967295

-- A server may have lost all that it had while its clients live on: who writes where there may be nothing says again what it is.
local function name_layout() call('SET', p .. 'layout', 'winddown list 1', 'NX') end

-- Tells one waiter; a token that is there already tells enough.
local function wake()
  if call('LLEN', p .. 'wake') == 0 then call('LPUSH', p .. 'wake', '1') end
end

-- Where a job stands in the line: higher priorities first, then by sequence number. Digits only, so that bytes sort as numbers do.
-- What cannot be read stands first at priority 0, and whoever claims it sets it aside.
local function place(value, id)
  local seq, priority = string.match(value or '', '^(%d+) %d+ (-?%d+) ')
  return string.format('%010.0f%016.0f', 2147483647 - (tonumber(priority) or 0), tonumber(seq) or 0) .. id
end

local function put_back(ids)
  if #ids == 0 then return end
  local values = call('HMGET', jobs, unpack(ids))
  local places = {}
  for i, id in ipairs(ids) do
    places[2 * i - 1], places[2 * i] = 0, place(values[i], id)
  end
  call('ZADD', line, unpack(places))
end

-- attempts, interruptions, crashes, the token of the last hand-back while it is pending, the checkpoint behind a '+'
local function read(text)
  local a, i, c, token, checkpoint = string.match(text or '', '^(%d+)\n(%d+)\n(%d+)\n([^\n]*)\n(.*)$')
  if not a then return 0, 0, 0, '', '' end
  return tonumber(a), tonumber(i), tonumber(c), token, checkpoint
end

local function write(id, a, i, c, token, checkpoint)
  if a == 0 and i == 0 and c == 0 and token == '' and checkpoint == '' then
    call('HDEL', meta, id)
  else
    a, i, c = math.min(a, MOST), math.min(i, MOST), math.min(c, MOST)
    call('HSET', meta, id, a .. '\n' .. i .. '\n' .. c .. '\n' .. token .. '\n' .. checkpoint)
  end
end

-- A claim of several jobs is in `leases` by its token, EPOCH:OWNER, and its jobs are in a set. One of a single job needs no set: it is there
-- by its token, a newline and the id. No name of an owner has a newline.
local function ids_of(claim)
  local only = string.match(claim, '\n(.*)$')
  return only and {only} or call('SMEMBERS', p .. 'h:' .. claim)
end

local function size_of(claim)
  return string.find(claim, '\n', 1, true) and 1 or call('SCARD', p .. 'h:' .. claim)
end

-- Epoch and owner; nothing where it is no claim of ours.
local function whose(claim) return string.match(claim, '^(%d+):([^\n]*)') end

local function forget(claim)
  call('ZREM', leases, claim)
  call('DEL', p .. 'h:' .. claim)
end

-- Whether each of the jobs ARGV[i..j] is held by a claim, 1 or 0; and as what that is in `leases`.
local function holds(token, i, j)
  local key = p .. 'h:' .. token
  if i == j or call('EXISTS', key) == 0 then
    for k = i, j do
      local claim, are = token .. '\n' .. ARGV[k], {}
      if call('ZSCORE', leases, claim) then
        for l = i, j do are[#are + 1] = ARGV[l] == ARGV[k] and 1 or 0 end
        return are, claim
      end
    end
  end
  return call('SMISMEMBER', key, unpack(ARGV, i, j)), token
end

-- Takes the jobs ARGV[i..j] out of a claim. Nothing where all were in it, or else for each whether it was: 1 or 0.
local function release(token, i, j)
  local are, claim = holds(token, i, j)
  local all, some = true, false
  for _, is in ipairs(are) do all, some = all and is == 1, some or is == 1 end
  if claim ~= token then
    call('ZREM', leases, claim)
  elseif some then
    call('SREM', p .. 'h:' .. token, unpack(ARGV, i, j))
    if call('EXISTS', p .. 'h:' .. token) == 0 then call('ZREM', leases, token) end
  end
  return not all and are or nil
end

-- Why a claim does not hold a job.
local function verdict(token, id, handed_back)
  if call('HEXISTS', jobs, id) == 0 then return GONE end
  if handed_back then
    local _, _, _, last = read(call('HGET', meta, id))
    if last == token then return ALREADY end
  end
  return LOST
end

local function millis()
  local time = call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000), time[1] * 1000000 + time[2]
end
