
-- Takes a place and counts a request, or neither. asked: place, life_ms, per_minute and most, each
-- of which may be missing.
local places = KEYS[1] .. ':places'
redis.call('ZREMRANGEBYSCORE', places, '-inf', text(now))
if asked.most ~= cjson.null and redis.call('ZCARD', places) >= asked.most then
  return { 'places' }
end
local told = { 'in' }
if asked.per_minute ~= cjson.null then
  local is_taken
  is_taken, told = take('requests', 1, asked.per_minute)
  if not is_taken then
    return told
  end
end
redis.call('ZADD', places, now + asked.life_ms, asked.place)
redis.call('PEXPIRE', places, kept + asked.life_ms)
return told
