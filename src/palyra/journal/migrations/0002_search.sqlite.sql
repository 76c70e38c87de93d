-- Full text over the transcripts. The row id is all that ties an index row to its message.

CREATE VIRTUAL TABLE message_words USING fts5 (
    text,
    session_id UNINDEXED,
    tape_seq UNINDEXED,
    principal UNINDEXED,
    tokenize = 'unicode61 remove_diacritics 2'
);
