-- Finds conversations that have ended without a look at the marks of changes, which end when they are made.
CREATE INDEX weir_conversation_by_own_end ON weir_conversation (expires_ms) WHERE name < '~';

-- Deletes the excess: expired conversations, then the oldest of the tenant with the most data. The marks
-- of its changed conversations go last: without one, an exchange could undo a change. Earlier versions
-- call the function of two parameters.
CREATE FUNCTION weir_evict_conversations(now_ms bigint, marks_end_ms bigint, max_bytes bigint)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    held bigint;
    most bytea;
BEGIN
    SELECT bytes INTO held FROM weir_total WHERE kind = 'conversation';
    IF held IS NULL OR held <= max_bytes THEN
        RETURN;
    END IF;
    DELETE FROM weir_conversation WHERE name < '~' AND expires_ms <= now_ms;
    DELETE FROM weir_conversation WHERE expires_ms <= marks_end_ms;
    LOOP
        SELECT bytes INTO held FROM weir_total WHERE kind = 'conversation';
        EXIT WHEN held IS NULL OR held <= max_bytes;
        SELECT tenant INTO most FROM weir_weight WHERE kind = 'conversation'
            ORDER BY bytes DESC, tenant DESC LIMIT 1;
        -- Of the rows that have ended only marks are left.
        DELETE FROM weir_conversation WHERE id = coalesce(
            (SELECT id FROM weir_conversation WHERE tenant = most AND expires_ms > now_ms
             ORDER BY expires_ms, id LIMIT 1),
            (SELECT id FROM weir_conversation WHERE tenant = most
             ORDER BY expires_ms, id LIMIT 1));
        EXIT WHEN NOT FOUND;
    END LOOP;
END
$$;
