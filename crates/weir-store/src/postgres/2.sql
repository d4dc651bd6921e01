-- Origin of a request, as its client states it.
ALTER TABLE weir_request
    ADD COLUMN conversation text COLLATE "C",
    ADD COLUMN agent text COLLATE "C",
    ADD COLUMN parent text COLLATE "C",
    ADD COLUMN class text COLLATE "C";
