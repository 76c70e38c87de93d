-- Full text over the transcripts.

CREATE TABLE message_words (
    session_id TEXT NOT NULL,
    tape_seq BIGINT NOT NULL,
    principal TEXT NOT NULL,
    text TEXT NOT NULL,
    words TSVECTOR GENERATED ALWAYS AS (to_tsvector('simple', text)) STORED,
    PRIMARY KEY (session_id, tape_seq)
);
CREATE INDEX message_words_found ON message_words USING GIN (words);
