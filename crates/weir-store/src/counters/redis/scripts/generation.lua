-- Which generation it is and how old; a new one where there is none, or Redis is another run.
-- asked: proposal.
if not known[1] or known[2] ~= run then
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'token', asked.proposal, 'run', run, 'since', text(now))
  known = { asked.proposal, run, text(now) }
end
return { known[1], text(math.max(0, now - tonumber(known[3]))) }
