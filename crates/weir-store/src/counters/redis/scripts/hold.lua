-- Holds what a request may come to in all its budgets, or in none, and tells how they stand.
-- asked: id, begun_ms, lease_ms, scopes, is_look, parts of key, bucket, first, lifetime_ms (0: for
-- good), limit and amount.
if is_stale() then
  return { 'stale' }
end
local missing = { 'missing' }
for _, part in ipairs(asked.parts) do
  local state = redis.call('HMGET', count_of(part.key), 'state', 'from')
  if state[1] ~= 'loaded' or tonumber(state[2] or '0') > part.first then
    missing[#missing + 1] = part.key
  end
end
if #missing > 1 then
  return missing
end
-- Asked again by a request that holds something already.
if not asked.is_look and redis.call('EXISTS', lease_of(asked.id)) == 1 then
  close(asked.id, 0, 0)
end

local function tally(part)
  local count = count_of(part.key)
  local fields = redis.call('HGETALL', count)
  local spent, held, first, passed, from = 0, 0, -1, {}, -1
  for at = 1, #fields, 2 do
    local kind, bucket = string.match(fields[at], '^([sh]):(%d+)$')
    bucket = tonumber(bucket)
    if kind and bucket < part.first then
      -- Another instance's clock may still count it.
      if part.lifetime_ms > 0 and bucket + part.lifetime_ms + hour < now then
        passed[#passed + 1] = fields[at]
        from = math.max(from, bucket + 1)
      end
    elseif kind == 'h' then
      held = held + tonumber(fields[at + 1])
    elseif kind == 's' then
      local amount = tonumber(fields[at + 1])
      spent = spent + amount
      if amount > 0 and (first < 0 or bucket < first) then
        first = bucket
      end
    end
  end
  if #passed > 0 then
    redis.call('HDEL', count, unpack(passed))
    redis.call('HSET', count, 'from', text(math.max(from, tonumber(redis.call('HGET', count, 'from') or '0'))))
  end
  return spent, held, first
end

local fits, reply = not asked.is_look, {}
for _, part in ipairs(asked.parts) do
  local spent, held, first = tally(part)
  fits = fits and spent + held + part.amount <= part.limit
  reply[#reply + 1] = text(spent)
  reply[#reply + 1] = text(held)
  reply[#reply + 1] = text(first)
end
if not fits then
  table.insert(reply, 1, 'full')
  return reply
end
open(asked.id, asked.begun_ms, asked.scopes)
for index, part in ipairs(asked.parts) do
  hold(asked.id, part.key, part.bucket, part.amount)
  redis.call('PEXPIRE', count_of(part.key), kept)
  reply[index * 3 - 1] = text(tonumber(reply[index * 3 - 1]) + part.amount)
end
uncovered(reply, asked.id, asked.scopes, -1)
table.insert(reply, 1, 'held')
return reply
