"""Where files came from: by content, by the latest, below a folder, and of one principal only."""

from palyra.core.policy import labels
from palyra.journal.content import file_origins
from palyra.journal.content.file_origins import FOR_GOOD, MAX_ORIGINS_PER_PATH, FileOrigin, WrittenFolder, labels_of
from palyra.journal.engines.base import Connection
from tests.contract.journal.builders import BEN, an_id
from tests.support.builders import ANA

WEB = (labels.OWNER, labels.WEB)


def an_origin(place: int, *, path: str = "/ws/a.txt", digest: str = "", of: tuple[str, ...] = WEB) -> FileOrigin:
    return FileOrigin(path, digest or f"digest {place}", of, an_id(place))


def test_a_content_is_known_by_its_digest_and_another_counts_as_the_latest(conn: Connection) -> None:
    file_origins.remember(conn, ANA, FileOrigin("/ws/a.txt", "before", (labels.OWNER,), ""))
    file_origins.remember(conn, ANA, an_origin(1))
    known = file_origins.of_path(conn, ANA, "/ws/a.txt")
    assert labels_of(known, "before") == (labels.OWNER,)
    assert labels_of(known, "digest 1") == WEB
    assert labels_of(known, "by hand") == WEB
    assert labels_of(known, None) == WEB
    assert labels_of(file_origins.of_path(conn, ANA, "/ws/b.txt"), "before") is None
    assert file_origins.of_path(conn, BEN, "/ws/a.txt") == []


def test_the_last_word_about_a_content_counts(conn: Connection) -> None:
    file_origins.remember(conn, ANA, an_origin(1, digest="same"))
    file_origins.remember(conn, ANA, an_origin(2, digest="same", of=(labels.OWNER,)))
    assert file_origins.of_path(conn, ANA, "/ws/a.txt") == [an_origin(2, digest="same", of=(labels.OWNER,))]


def test_a_folder_holds_what_lies_below_it_and_nothing_that_only_begins_alike(conn: Connection) -> None:
    for place, path in enumerate(("/ws/a.txt", "/ws/deep/er/b.txt", "/ws2/c.txt", "/w", "/ws_/d", "/ws/%"), start=1):
        file_origins.remember(conn, ANA, an_origin(place, path=path))
    file_origins.remember(conn, BEN, an_origin(9, path="/ws/bens.txt"))
    found = [one.path for one in file_origins.below(conn, ANA, "/ws")]
    assert sorted(found) == ["/ws/%", "/ws/a.txt", "/ws/deep/er/b.txt"]
    assert [one.path for one in file_origins.below(conn, ANA, "/ws/deep/")] == ["/ws/deep/er/b.txt"]


def test_a_path_keeps_its_first_content_and_the_latest(conn: Connection) -> None:
    file_origins.remember(conn, ANA, FileOrigin("/ws/a.txt", "before", (labels.OWNER,), ""))
    for place in range(1, MAX_ORIGINS_PER_PATH + 10):
        file_origins.remember(conn, ANA, an_origin(place))
    known = file_origins.of_path(conn, ANA, "/ws/a.txt")
    assert len(known) <= MAX_ORIGINS_PER_PATH + 1
    assert known[0].digest == "before"
    assert known[-1].digest == f"digest {MAX_ORIGINS_PER_PATH + 9}"


def test_a_content_is_found_wherever_it_was_written(conn: Connection) -> None:
    file_origins.remember(conn, ANA, an_origin(1, digest="same"))
    file_origins.remember(conn, ANA, an_origin(2, path="/ws/b.txt", digest="same", of=(labels.OWNER,)))
    file_origins.remember(conn, ANA, an_origin(3, path="/ws/c.txt"))
    assert [one.path for one in file_origins.of_digest(conn, ANA, "same")] == ["/ws/a.txt", "/ws/b.txt"]
    assert file_origins.of_digest(conn, BEN, "same") == []


def test_a_marked_folder_holds_for_all_below_it_and_for_what_looks_into_it(conn: Connection) -> None:
    marked = WrittenFolder("/ws/a_%/", WEB, an_id(1))
    file_origins.mark_folder(conn, ANA, marked)
    for path in ("/ws/a_%", "/ws/a_%/", "/ws/a_%/deep/er.txt"):
        assert file_origins.folders_around(conn, ANA, path) == [marked]
    for path in ("/ws", "/ws/a_%b", "/ws/abc/x"):
        assert file_origins.folders_around(conn, ANA, path) == []
    assert file_origins.folders_touching(conn, ANA, "/ws") == [marked]
    assert file_origins.folders_touching(conn, ANA, "/ws/other") == []
    assert file_origins.folders_around(conn, BEN, "/ws/a_%") == []


def test_a_mark_goes_with_its_program_unless_it_is_for_good(conn: Connection) -> None:
    for since in (an_id(1), an_id(2), FOR_GOOD):
        file_origins.mark_folder(conn, ANA, WrittenFolder("/ws/", WEB, since))
    file_origins.unmark_folders(conn, ANA, since=an_id(1))
    assert [one.since for one in file_origins.folders_around(conn, ANA, "/ws/x")] == [FOR_GOOD, an_id(2)]


def test_a_folder_that_is_marked_again_keeps_the_labels_that_it_has(conn: Connection) -> None:
    for of in ((labels.WEB,), (labels.OTHER,)):
        file_origins.mark_folder(conn, ANA, WrittenFolder("/ws/", of, FOR_GOOD))
    (marked,) = file_origins.folders_around(conn, ANA, "/ws/x")
    assert marked.labels == (labels.OTHER, labels.WEB)


def test_a_content_that_is_known_is_trusted_by_itself_in_a_marked_folder_too() -> None:
    around = [WrittenFolder("/ws/", (labels.WEB,), FOR_GOOD)]
    known = [FileOrigin("/ws/a.txt", "own", (labels.OWNER,), an_id(1))]
    assert labels_of(known, "own", around) == (labels.OWNER,)
    assert labels_of(known, "other", around) == (labels.OWNER, labels.WEB)
    assert labels_of([], None, around) == (labels.WEB,)
    assert labels_of([], None) is None


def test_one_content_of_a_path_is_forgotten(conn: Connection) -> None:
    file_origins.remember(conn, ANA, an_origin(1), FileOrigin("/ws/a.txt", "", WEB, an_id(2)))
    file_origins.forget(conn, ANA, ["/ws/a.txt"], digest="")
    assert file_origins.of_path(conn, ANA, "/ws/a.txt") == [an_origin(1)]
