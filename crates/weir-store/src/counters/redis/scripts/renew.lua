-- Prolongs the life of requests that go on. Tells those that are not known, behind 'lost' where nobody
-- has swept them.
-- asked: lease_ms, ids.
if is_stale() then
  return { 'stale' }
end
local reply = { 'done' }
for _, id in ipairs(asked.ids) do
  if redis.call('PEXPIRE', lease_of(id), kept) == 1 then
    redis.call('ZADD', base .. 'ends', now + asked.lease_ms, id)
  else
    if redis.call('EXISTS', base .. 'swept:' .. id, base .. 'given:' .. id) == 0 then
      reply[#reply + 1] = 'lost'
    end
    reply[#reply + 1] = id
  end
end
return reply
