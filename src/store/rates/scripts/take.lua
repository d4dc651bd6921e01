
-- Counts tokens, or none of them. asked: amount, per_minute.
return take('tokens', asked.amount, asked.per_minute) or { 'in' }
