-- Adds to a count what the journal has, and opens it, unless further requests got a part of it
-- meanwhile. Requests that the journal has open hold the most that they may come to, also those of
-- instances that have ended or have not registered them.
-- asked: key, token, first, seen (how many were left out), spent of bucket and amount, underway of id, begun_ms,
-- scopes, bucket and held, lease_ms (0: whoever sweeps looks at them at once), is_given_up.
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
for _, request in ipairs(asked.underway) do
  local part = redis.call('HGET', lease_of(request.id), 'p:' .. asked.key)
  if part then
    local bucket, held = string.match(part, '^(%d+) (%d+)$')
    if tonumber(held) < request.held then
      add(count, 'h:' .. bucket, request.held - tonumber(held))
      redis.call('HSET', lease_of(request.id), 'p:' .. asked.key, bucket .. ' ' .. text(request.held))
    end
  elseif redis.call('EXISTS', lease_of(request.id)) == 1 then
    hold(request.id, asked.key, request.bucket, request.held)
  -- One that had a part and has no lease any more was settled since the journal was asked.
  elseif redis.call('SISMEMBER', seen_of(asked.key), request.id) == 0
    and redis.call('EXISTS', base .. 'swept:' .. request.id) == 0
  then
    open(request.id, request.begun_ms, request.scopes)
    hold(request.id, asked.key, request.bucket, request.held)
  end
end
redis.call('HSET', count, 'state', 'loaded', 'from', text(asked.first))
redis.call('HDEL', count, 'token', 'until')
redis.call('DEL', seen_of(asked.key))
return { 'loaded' }
