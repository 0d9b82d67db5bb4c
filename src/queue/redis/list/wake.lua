-- ARGV: 'pause', 'resume', or nothing.
name_layout()
if ARGV[1] == 'pause' then
  call('HSET', p .. 'state', 'paused', '1')
  return 0
end
if ARGV[1] == 'resume' then call('HDEL', p .. 'state', 'paused') end
wake()
return 0
