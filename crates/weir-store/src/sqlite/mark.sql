-- Finds conversations that have ended without a look at the marks of changes, which end when they are made.
CREATE INDEX conversation_by_own_end ON conversation (expires_ms) WHERE name < '~';
