-- What compactions that observe mode left out would have saved.
ALTER TABLE weir_request ADD COLUMN planned_saved_nano_usd bigint;
ALTER TABLE weir_usage_day ADD COLUMN planned_saved_nano_usd bigint NOT NULL DEFAULT 0;
