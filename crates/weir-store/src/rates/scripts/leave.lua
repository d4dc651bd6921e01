
-- Gives a place back. asked: place.
redis.call('ZREM', KEYS[1] .. ':places', asked.place)
return { 'in' }
