-- What every script of the counts begins with. KEYS[1] is the key of the generation, and all other
-- keys begin with it and the generation's token, so that nothing of an earlier one is ever read.
-- ARGV[1] is a JSON object. Replies are lists of texts. Numbers are below 2^53, which is exact here;
-- they are written by text(), as Lua itself writes but 14 digits.
local asked = cjson.decode(ARGV[1])
local clock = redis.call('TIME')
local now = tonumber(clock[1]) * 1000 + math.floor(tonumber(clock[2]) / 1000)
local most = 9007199254740992
local hour = 3600000
-- How long what nobody touches is kept.
local kept = 8 * 24 * hour

-- A Redis that was started anew, or another that took its place, may have lost what was written
-- last: it is another run, and counts begin anew.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') or ''
local known = redis.call('HMGET', KEYS[1], 'token', 'run', 'since')
local base = KEYS[1] .. ':' .. (known[1] or '') .. ':'

local function text(number)
  return string.format('%.0f', number)
end

local function is_stale()
  return known[1] ~= asked.generation or known[2] ~= run
end

local function count_of(name)
  return base .. 'count:' .. name
end

local function lease_of(id)
  return base .. 'lease:' .. id
end

local function seen_of(name)
  return base .. 'seen:' .. name
end

-- Adds to a field of a count, never past what is exact.
local function add(count, field, amount)
  local before = tonumber(redis.call('HGET', count, field) or '0')
  redis.call('HSET', count, field, text(math.max(0, math.min(most, before + amount))))
end

-- Gives a request a part of a count; what is begun leaves it out of what the journal tells.
local function hold(id, name, bucket, held)
  local count = count_of(name)
  redis.call('HSET', lease_of(id), 'p:' .. name, text(bucket) .. ' ' .. text(held))
  add(count, 'h:' .. text(bucket), held)
  if redis.call('HGET', count, 'state') == 'loading' then
    redis.call('SADD', seen_of(name), id)
    redis.call('PEXPIRE', seen_of(name), kept)
  end
end

-- Notes a request as under way.
local function open(id, begun, scopes)
  local lease = lease_of(id)
  redis.call('HSET', lease, 'begun', text(begun))
  redis.call('PEXPIRE', lease, kept)
  for _, scope in ipairs(scopes) do
    redis.call('HSET', lease, 's:' .. scope, '')
    redis.call('SADD', base .. 'open:' .. scope, id)
    redis.call('PEXPIRE', base .. 'open:' .. scope, kept)
  end
  redis.call('ZADD', base .. 'ends', now + asked.lease_ms, id)
  redis.call('PEXPIRE', base .. 'ends', kept)
end

-- Puts what a request came to in the place of what it held, in each count that still has its bucket.
local function close(id, nano_usd, tokens)
  local lease = lease_of(id)
  local fields = redis.call('HGETALL', lease)
  for at = 1, #fields, 2 do
    local kind, name = string.sub(fields[at], 1, 2), string.sub(fields[at], 3)
    if kind == 'p:' then
      local bucket, held = string.match(fields[at + 1], '^(%d+) (%d+)$')
      local count = count_of(name)
      if redis.call('HEXISTS', count, 'h:' .. bucket) == 1 then
        local amount = string.sub(name, 1, 4) == 'usd/' and nano_usd or tokens
        add(count, 'h:' .. bucket, -tonumber(held))
        if amount > 0 then
          add(count, 's:' .. bucket, amount)
        end
      end
    elseif kind == 's:' then
      redis.call('SREM', base .. 'open:' .. name, id)
    end
  end
  redis.call('DEL', lease)
  redis.call('ZREM', base .. 'ends', id)
end

-- Whether the journal had a request that has ended when the count was begun: as one that has ended, or
-- as one that is open. `written_ago_ms` is how long ago the journal had it at the latest, -1 while it goes
-- on.
local function is_told(count, written_ago_ms)
  local told = redis.call('HGET', count, 'told')
  return written_ago_ms >= 0 and told and tonumber(told) > now - written_ago_ms
end

-- Adds to `found` the counts of its scopes that a request has no part of.
local function uncovered(found, id, scopes, written_ago_ms)
  for _, scope in ipairs(scopes) do
    for _, name in ipairs(redis.call('SMEMBERS', base .. 'counts:' .. scope)) do
      local count = count_of(name)
      if redis.call('EXISTS', count) == 0 then
        redis.call('SREM', base .. 'counts:' .. scope, name)
      elseif redis.call('HEXISTS', lease_of(id), 'p:' .. name) == 0
        and not is_told(count, written_ago_ms)
      then
        found[#found + 1] = name
      end
    end
  end
end
