-- What model turns took: one row for each, from its reservation on. It follows from the tape.
-- `root_run_id` and `root_session_id` are those that the run works for, be it as a child.

CREATE TABLE usage (
    root_run_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    turn BIGINT NOT NULL,
    session_id TEXT NOT NULL,
    root_session_id TEXT NOT NULL,
    principal TEXT NOT NULL,
    agent_id TEXT NOT NULL,
    provider TEXT NOT NULL,
    model TEXT NOT NULL,
    task TEXT NOT NULL,
    cause TEXT NOT NULL,
    step TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    state TEXT NOT NULL,
    reserved_input BIGINT NOT NULL,
    reserved_output BIGINT NOT NULL,
    reserved_micros BIGINT,
    input_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    cached_tokens BIGINT NOT NULL DEFAULT 0,
    cache_write_tokens BIGINT NOT NULL DEFAULT 0,
    reasoning_tokens BIGINT NOT NULL DEFAULT 0,
    micros BIGINT,
    estimated BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (root_run_id, run_id, turn)
);
CREATE INDEX usage_by_time ON usage (at_ms);
CREATE INDEX usage_by_principal ON usage (principal, at_ms);

-- Sums of those rows, for each scope and period that a budget has asked about: a row is always the sum of the rows of
-- `usage` that it is about, so it may be removed at any time, and is made anew when it is asked about again.

CREATE TABLE spending (
    scope TEXT NOT NULL,
    period TEXT NOT NULL,
    kept_until_ms BIGINT NOT NULL,
    settled_tokens BIGINT NOT NULL,
    settled_micros BIGINT NOT NULL,
    reserved_tokens BIGINT NOT NULL,
    reserved_micros BIGINT NOT NULL,
    PRIMARY KEY (scope, period)
);

-- Of which budgets it was told that they are exceeded: once for each scope and period.

CREATE TABLE budget_warnings (
    budget TEXT NOT NULL,
    scope TEXT NOT NULL,
    period TEXT NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    at_ms BIGINT NOT NULL,
    PRIMARY KEY (budget, scope, period)
);
