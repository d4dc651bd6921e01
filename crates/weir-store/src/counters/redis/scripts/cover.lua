-- Gives requests a part of counts that they hold nothing in. asked: parts of id, key, bucket,
-- written_ago_ms.
if is_stale() then
  return { 'stale' }
end
for _, part in ipairs(asked.parts) do
  local count = count_of(part.key)
  if redis.call('EXISTS', lease_of(part.id)) == 1 and redis.call('EXISTS', count) == 1
    and redis.call('HEXISTS', lease_of(part.id), 'p:' .. part.key) == 0
    and not is_told(count, part.written_ago_ms)
  then
    hold(part.id, part.key, part.bucket, 0)
  end
end
return { 'done' }
