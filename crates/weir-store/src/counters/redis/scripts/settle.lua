-- Settles a request, once. asked: id, is_known (whether it was registered in this generation),
-- written_ago_ms, nano_usd, tokens, scopes, is_swept (whether somebody else settles it), is_given (whether
-- somebody else gives it back).
if is_stale() then
  return { 'stale' }
end
if redis.call('EXISTS', lease_of(asked.id)) == 1 then
  close(asked.id, asked.nano_usd, asked.tokens)
  if asked.is_swept then
    -- Who had it may be back later, and register it again.
    redis.call('SET', base .. 'swept:' .. asked.id, '', 'PX', hour)
  elseif asked.is_given then
    -- It may be registered again, and is not taken for lost.
    redis.call('SET', base .. 'given:' .. asked.id, '', 'PX', hour)
  end
  return { 'done' }
end
if asked.is_known or asked.is_swept or asked.nano_usd + asked.tokens == 0
  or redis.call('EXISTS', base .. 'swept:' .. asked.id) == 1
then
  return { 'done' }
end
local found = {}
uncovered(found, asked.id, asked.scopes, asked.written_ago_ms)
return { #found > 0 and 'unknown' or 'done' }
