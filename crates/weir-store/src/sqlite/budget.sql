-- How much may be spent: by scope, measure and window, as `id` names them. `settings` is a JSON object.
CREATE TABLE budget (
    id TEXT PRIMARY KEY,
    settings TEXT NOT NULL,
    created_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
