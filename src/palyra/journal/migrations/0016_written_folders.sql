-- Folders in which everything counts as written by a program with these labels: it runs now, it was cut off by a crash,
-- or it changed more than could be listed file by file. `path` ends in a slash; `since` is the program.

CREATE TABLE written_folders (
    principal TEXT NOT NULL,
    path TEXT NOT NULL,
    labels TEXT NOT NULL,
    since TEXT NOT NULL,
    PRIMARY KEY (principal, since, path)
);
