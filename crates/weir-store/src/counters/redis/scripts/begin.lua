-- Begins a count that is not there: it is empty, and nobody holds anything in it until it is loaded.
-- Tells the requests under way that have no part of it, with when they began.
-- A count that is there without what the caller's clock needs begins again.
-- asked: key, scope, token, first, lock_ms, grace_ms.
if is_stale() then
  return { 'stale' }
end
local age = now - tonumber(known[3])
if age < asked.grace_ms then
  return { 'early', text(asked.grace_ms - age) }
end
local count = count_of(asked.key)
local state = redis.call('HMGET', count, 'state', 'until', 'from')
if state[1] == 'loaded' and tonumber(state[3] or '0') <= asked.first then
  return { 'loaded' }
end
if state[1] == 'loading' and tonumber(state[2]) > now then
  return { 'busy' }
end
redis.call('DEL', count, seen_of(asked.key))
redis.call('HSET', count, 'state', 'loading', 'token', asked.token, 'until', text(now + asked.lock_ms))
redis.call('PEXPIRE', count, kept)
redis.call('SADD', base .. 'counts:' .. asked.scope, asked.key)
redis.call('PEXPIRE', base .. 'counts:' .. asked.scope, kept)
local reply = { 'begun' }
for _, id in ipairs(redis.call('SMEMBERS', base .. 'open:' .. asked.scope)) do
  local lease = redis.call('HMGET', lease_of(id), 'begun', 'p:' .. asked.key)
  if not lease[1] then
    redis.call('SREM', base .. 'open:' .. asked.scope, id)
  elseif lease[2] then
    local bucket, held = string.match(lease[2], '^(%d+) (%d+)$')
    hold(id, asked.key, tonumber(bucket), tonumber(held))
  else
    reply[#reply + 1] = id
    reply[#reply + 1] = lease[1]
  end
end
return reply
