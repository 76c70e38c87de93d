-- The vault: values are sealed with a key that is not in the database, each to its owner, name, version and scope.

CREATE TABLE secrets (
    principal TEXT NOT NULL,
    name TEXT NOT NULL,
    version BIGINT NOT NULL,
    scope TEXT NOT NULL,
    created_ms BIGINT NOT NULL,
    updated_ms BIGINT NOT NULL,
    last_used_ms BIGINT,
    key_id TEXT NOT NULL,
    sealed TEXT NOT NULL,
    PRIMARY KEY (principal, name)
);
