-- Emergency stops: whose work stands still, by whom and why; one that was lifted stays as a record of it.

CREATE TABLE stops (
    stop_id TEXT PRIMARY KEY,
    principal TEXT,
    stopped_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    stopped_ms BIGINT NOT NULL,
    lifted_ms BIGINT,
    lifted_by TEXT
);
CREATE INDEX stops_standing ON stops (stopped_ms) WHERE lifted_ms IS NULL;
