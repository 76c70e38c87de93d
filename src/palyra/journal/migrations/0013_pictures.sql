-- Pictures that belong to messages of a session: what is listed here is kept.

CREATE TABLE pictures (
    session_id TEXT NOT NULL,
    digest TEXT NOT NULL,
    PRIMARY KEY (session_id, digest)
);
CREATE INDEX pictures_by_digest ON pictures (digest);
