-- Tapes that were moved to the archive: the end of each, and the file that holds its entries.

CREATE TABLE rotated (
    session_id TEXT PRIMARY KEY,
    tape_seq BIGINT NOT NULL,
    hash TEXT NOT NULL,
    file TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    at_ms BIGINT NOT NULL
);
