-- Questions that are asked once more, and a candidate set of policies that judges beside the one in force: where the two
-- differ, by the policies that make the difference, with a few calls as examples of each.

ALTER TABLE approvals ADD COLUMN reissued_as TEXT;

CREATE TABLE shadows (
    shadow_id TEXT PRIMARY KEY,
    hash TEXT NOT NULL,
    files TEXT NOT NULL,
    started_ms BIGINT NOT NULL,
    started_by TEXT NOT NULL,
    stopped_ms BIGINT,
    stopped_by TEXT,
    judged BIGINT NOT NULL DEFAULT 0,
    failed BIGINT NOT NULL DEFAULT 0,
    failure TEXT NOT NULL DEFAULT ''
);

CREATE TABLE shadow_clauses (
    shadow_id TEXT NOT NULL,
    clause TEXT NOT NULL,
    was TEXT NOT NULL,
    was_by TEXT NOT NULL,
    would TEXT NOT NULL,
    would_by TEXT NOT NULL,
    calls BIGINT NOT NULL,
    first_ms BIGINT NOT NULL,
    last_ms BIGINT NOT NULL,
    PRIMARY KEY (shadow_id, clause)
);

CREATE TABLE shadow_examples (
    shadow_id TEXT NOT NULL,
    clause TEXT NOT NULL,
    call_id TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    example TEXT NOT NULL,
    PRIMARY KEY (shadow_id, clause, call_id)
);
