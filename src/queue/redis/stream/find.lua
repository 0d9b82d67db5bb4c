-- How a job stands: its kind and its past, or nothing. ARGV: group, its name.
local id = entries_named({ ARGV[2] })[1]
if not id or #call('XRANGE', STREAM, id, id) == 0 then
  return false
end
local kind
local pending = call('XPENDING', STREAM, GROUP, id, id, 1)[1]
if call('ZSCORE', LATER, id) then
  kind = 'scheduled'
elseif pending then
  kind = pending[2] == BACK and 'pending' or pending[2] == BURIED and 'dead' or 'active'
elseif not is_over(id, last_delivered()) then
  local owned = home(id)
  kind = owned and (owned == BURIED and 'dead' or 'active') or 'pending'
end
return kind and { kind, call('HGET', PAST, id) } or false
