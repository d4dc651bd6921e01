-- Notes requests that are under way and that this generation may not know, with what they hold.
-- asked: lease_ms, leases of id, begun_ms, scopes, written_ago_ms, parts of key, bucket and held.
-- Tells the counts that each has no part of yet: its place in the list, how many, their keys.
if is_stale() then
  return { 'stale' }
end
local reply = { 'done' }
for place, lease in ipairs(asked.leases) do
  local is_swept = redis.call('EXISTS', base .. 'swept:' .. lease.id) == 1
  if not is_swept and redis.call('EXISTS', lease_of(lease.id)) == 0 then
    open(lease.id, lease.begun_ms, lease.scopes)
    for _, part in ipairs(lease.parts) do
      local count = count_of(part.key)
      if redis.call('EXISTS', count) == 0 then
        -- Whoever begins the count gives it this part.
        local value = text(part.bucket) .. ' ' .. text(part.held)
        redis.call('HSET', lease_of(lease.id), 'p:' .. part.key, value)
      elseif not is_told(count, lease.written_ago_ms) then
        hold(lease.id, part.key, part.bucket, part.held)
      end
    end
  end
  if not is_swept then
    local found = {}
    uncovered(found, lease.id, lease.scopes, lease.written_ago_ms)
    if #found > 0 then
      reply[#reply + 1] = text(place)
      reply[#reply + 1] = text(#found)
      for _, name in ipairs(found) do
        reply[#reply + 1] = name
      end
    end
  end
end
return reply
