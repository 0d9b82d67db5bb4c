#!lua flags=allow-oom
-- Makes the group where there is none: all that is in the stream is then a job, unless the queue's own keys know more of it. KEYS: the
-- stream, the prefix of the queue's own keys. ARGV: group, the layout in words.
if redis.call('EXISTS', KEYS[1]) == 1 then
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    if group[2] == ARGV[1] then
      return 0
    end
  end
end
redis.call('XGROUP', 'CREATE', KEYS[1], ARGV[1], '0', 'MKSTREAM')
-- Lost together with the group, as by `FLUSHALL`.
redis.call('SET', KEYS[2] .. 'layout', ARGV[2])
return 1
