-- What every script of rates begins with. KEYS[1] is a hash of two buckets, as `budget::rate` has
-- them, in sixty-thousandths of one; KEYS[1] with ':places' is who is under way and until when.
-- ARGV[1] is a JSON object.
local asked = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local minute = 60000
-- No bucket holds more than ten minutes' worth.
local max_minutes, kept = 10, 11 * minute

local function text(number)
  return string.format('%.0f', number)
end

local function filled(name, per_minute)
  local bucket = redis.call('HMGET', KEYS[1], name, name .. '_at')
  local elapsed = math.max(0, now - tonumber(bucket[2] or now))
  return math.max(0, tonumber(bucket[1] or '0') - elapsed * per_minute)
end

local function fill(name, amount)
  redis.call('HSET', KEYS[1], name, text(amount), name .. '_at', text(now))
  redis.call('PEXPIRE', KEYS[1], kept)
end

-- Takes from a bucket; whether it was taken, and what is in it then or why nothing was taken.
local function take(name, amount, per_minute)
  if amount > per_minute then
    return false, { 'ever' }
  end
  local wanted = filled(name, per_minute) + amount * minute
  local over = wanted - per_minute * minute
  if over > 0 then
    return false, { 'wait', text(math.ceil(over / math.max(1, per_minute))) }
  end
  fill(name, wanted)
  return true, { 'in', text(wanted) }
end
