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
else
  for _, group in ipairs(call('XINFO', 'GROUPS', STREAM)) do
    -- What comes behind the last that was delivered is still to come; what does not is done.
    if group[2] == GROUP and #call('XRANGE', STREAM, '(' .. group[8], id, 'COUNT', 1) == 1 then
      kind = 'pending'
    end
  end
end
return kind and { kind, call('HGET', PAST, id) } or false
