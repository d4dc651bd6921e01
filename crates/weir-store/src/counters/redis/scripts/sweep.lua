-- Requests whose instance has not prolonged them, for whoever asks to look after. They are not told
-- again for a while. asked: again_ms, most.
if is_stale() then
  return { 'stale' }
end
local ids = redis.call('ZRANGEBYSCORE', base .. 'ends', '-inf', text(now), 'LIMIT', 0, asked.most)
local reply = { 'done' }
for _, id in ipairs(ids) do
  if redis.call('EXISTS', lease_of(id)) == 1 then
    redis.call('ZADD', base .. 'ends', now + asked.again_ms, id)
    reply[#reply + 1] = id
  else
    redis.call('ZREM', base .. 'ends', id)
  end
end
return reply
