
-- Puts what was used in the place of what was taken. asked: taken, actual, per_minute.
local amount = filled('tokens', asked.per_minute) + (asked.actual - asked.taken) * minute
fill('tokens', math.max(0, math.min(amount, asked.per_minute * minute * max_minutes)))
return { 'in' }
