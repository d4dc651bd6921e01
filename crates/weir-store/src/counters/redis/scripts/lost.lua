-- Ends a generation of which something is lost: counts begin anew, by what the instances hold and what
-- the journal has.
if not is_stale() then
  redis.call('DEL', KEYS[1])
end
return { 'done' }
