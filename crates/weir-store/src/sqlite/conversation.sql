-- Conversations that are kept for callers. An `id` is never used again: a conversation that is replaced
-- or cleared gets another. Their sizes are counted like those of the values in `entry`.
CREATE TABLE conversation (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    tenant BLOB NOT NULL,
    name TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    last_ms INTEGER,
    expires_ms INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    weight_bytes INTEGER NOT NULL
) STRICT;
CREATE UNIQUE INDEX conversation_by_name ON conversation (tenant, name);
CREATE INDEX conversation_by_end ON conversation (expires_ms);
CREATE INDEX conversation_by_age ON conversation (tenant, expires_ms);

-- Their messages, in the order of `place`. A conversation may begin with one that `opens` a turn.
CREATE TABLE conversation_message (
    conversation INTEGER NOT NULL,
    place INTEGER NOT NULL,
    opens INTEGER NOT NULL,
    text BLOB NOT NULL
) STRICT;
CREATE UNIQUE INDEX conversation_message_by_place ON conversation_message (conversation, place);

CREATE TRIGGER conversation_added AFTER INSERT ON conversation BEGIN
    INSERT INTO weight VALUES ('conversation', new.tenant, new.weight_bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
    INSERT INTO total VALUES ('conversation', new.weight_bytes)
        ON CONFLICT DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER conversation_weighed AFTER UPDATE OF weight_bytes ON conversation BEGIN
    UPDATE weight SET bytes = bytes + new.weight_bytes - old.weight_bytes
        WHERE kind = 'conversation' AND tenant = new.tenant;
    UPDATE total SET bytes = bytes + new.weight_bytes - old.weight_bytes
        WHERE kind = 'conversation';
END;
CREATE TRIGGER conversation_removed AFTER DELETE ON conversation BEGIN
    DELETE FROM conversation_message WHERE conversation = old.id;
    UPDATE weight SET bytes = bytes - old.weight_bytes
        WHERE kind = 'conversation' AND tenant = old.tenant;
    DELETE FROM weight
        WHERE kind = 'conversation' AND tenant = old.tenant AND bytes <= 0;
    UPDATE total SET bytes = bytes - old.weight_bytes WHERE kind = 'conversation';
END;
