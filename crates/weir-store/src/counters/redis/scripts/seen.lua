-- The requests that settle themselves into a count that is being loaded: the journal is asked
-- without them, from now on. asked: key, token.
if is_stale() then
  return { 'stale' }
end
local count = count_of(asked.key)
if redis.call('HGET', count, 'token') ~= asked.token then
  return { 'lost' }
end
redis.call('HSET', count, 'told', text(now))
local reply = redis.call('SMEMBERS', seen_of(asked.key))
table.insert(reply, 1, 'seen')
return reply
