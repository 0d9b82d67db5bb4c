-- ARGV: 'pause', 'resume', or nothing.
name_layout()
if ARGV[1] == 'pause' then
  call('SET', p .. 'paused', '1')
  return 0
end
if ARGV[1] == 'resume' then call('DEL', p .. 'paused') end
wake()
return 0
