-- Adds what the journal told to a count and opens it, unless further requests got a part of it
-- meanwhile. asked: key, token, seen (how many were left out), spent of bucket and amount,
-- is_given_up.
if is_stale() then
  return { 'stale' }
end
local count = count_of(asked.key)
if redis.call('HGET', count, 'token') ~= asked.token then
  return { 'lost' }
end
if asked.is_given_up then
  redis.call('DEL', count, seen_of(asked.key))
  return { 'lost' }
end
if redis.call('SCARD', seen_of(asked.key)) ~= asked.seen then
  return { 'more' }
end
for _, told in ipairs(asked.spent) do
  if redis.call('HEXISTS', count, 'h:' .. text(told.bucket)) == 0 then
    redis.call('HSET', count, 'h:' .. text(told.bucket), '0')
  end
  add(count, 's:' .. text(told.bucket), told.amount)
end
redis.call('HSET', count, 'state', 'loaded')
redis.call('HDEL', count, 'token', 'until')
redis.call('DEL', seen_of(asked.key))
return { 'loaded' }
