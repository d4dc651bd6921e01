-- What compactions that observe mode left out would have saved.
ALTER TABLE request ADD COLUMN planned_saved_nano_usd INTEGER;
ALTER TABLE usage_day ADD COLUMN planned_saved_nano_usd INTEGER NOT NULL DEFAULT 0;
