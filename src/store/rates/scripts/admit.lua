
-- Takes a place and counts a request, or neither. asked: place, life_ms, per_minute and most, each
-- of which may be missing.
local places = KEYS[1] .. ':places'
redis.call('ZREMRANGEBYSCORE', places, '-inf', text(now))
if asked.most ~= cjson.null and redis.call('ZCARD', places) >= asked.most then
  return { 'places' }
end
if asked.per_minute ~= cjson.null then
  local refused = take('requests', 1, asked.per_minute)
  if refused then
    return refused
  end
end
redis.call('ZADD', places, now + asked.life_ms, asked.place)
redis.call('PEXPIRE', places, kept + asked.life_ms)
return { 'in' }
