-- Origin of a request, as its client states it.
ALTER TABLE request ADD COLUMN conversation TEXT;
ALTER TABLE request ADD COLUMN agent TEXT;
ALTER TABLE request ADD COLUMN parent TEXT;
ALTER TABLE request ADD COLUMN class TEXT;
