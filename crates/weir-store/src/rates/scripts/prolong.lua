
-- Prolongs places. One that was given back, or ran out, stays so. asked: life_ms, places of key and
-- place.
for _, one in ipairs(asked.places) do
  redis.call('ZADD', one.key .. ':places', 'XX', now + asked.life_ms, one.place)
  redis.call('PEXPIRE', one.key .. ':places', kept + asked.life_ms)
end
return { 'in' }
