
-- Counts tokens, or none of them. asked: amount, per_minute.
local _, told = take('tokens', asked.amount, asked.per_minute)
return told
