-- Where the content of files came from that tools have written: what is not here is the owner's.
-- `since` is the checkpoint of the change; empty for a content that was there before the first of them.

CREATE TABLE file_origins (
    principal TEXT NOT NULL,
    path TEXT NOT NULL,
    digest TEXT NOT NULL,
    labels TEXT NOT NULL,
    since TEXT NOT NULL,
    PRIMARY KEY (principal, path, digest)
);
