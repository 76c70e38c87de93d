"""Full text: every word counts, nothing is an operator, nobody finds what is not theirs."""

import pytest

from palyra.core.errors import SearchQueryEmpty
from palyra.core.ids import PrincipalId
from palyra.core.model.prompt import Message, Role
from palyra.core.projection.changes import StoredMessage
from palyra.journal.engines.base import Connection
from palyra.journal.stores import messages, search
from palyra.journal.stores.search import MAX_WORDS, MessageHit
from tests.contract.journal.builders import BEN, a_run_id, a_session_id
from tests.support.builders import ANA


def add(conn: Connection, *texts: str, principal: PrincipalId = ANA, place: int = 1) -> None:
    """Keep the texts as messages, numbered from 1."""
    kept = [
        StoredMessage(seq, a_run_id(), Message(role=Role.USER, text=text), tokens=1, labels=(), at_ms=0)
        for seq, text in enumerate(texts, start=1)
    ]
    messages.insert(conn, a_session_id(place), principal, messages=kept)


def found(conn: Connection, query: str, principal: PrincipalId = ANA, *, limit: int = 10) -> set[int]:
    return {hit.tape_seq for hit in search.find(conn, principal, query, limit=limit)}


def test_a_hit_says_where_it_is_and_what_was_said(conn: Connection) -> None:
    add(conn, "We met at the Old Bridge.")

    assert search.find(conn, ANA, "bridge", limit=10) == [MessageHit(a_session_id(), 1, "We met at the Old Bridge.")]


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("bridge", {1, 2}),
        ("BRIDGE", {1, 2}),
        ("old bridge", {1}),
        ("bridge old", {1}),
        ("bridge nowhere", set()),
        ("nowhere", set()),
        ("2026", {3}),
    ],
)
def test_a_message_is_found_by_all_of_its_words_in_any_order(conn: Connection, query: str, seqs: set[int]) -> None:
    add(conn, "We met at the Old Bridge.", "The new bridge is closed.", "It was in 2026")

    assert found(conn, query) == seqs


@pytest.mark.parametrize(("query", "seqs"), [("brid", {1}), ("old brid", {1}), ("bri old", set()), ("ridge", set())])
def test_the_last_word_may_be_a_beginning(conn: Connection, query: str, seqs: set[int]) -> None:
    add(conn, "the old bridge")

    assert found(conn, query) == seqs


@pytest.mark.parametrize(
    "query",
    [
        *(
            "old OR new",
            "old AND bridge",
            "NOT old",
            "NEAR(old bridge)",
            "old & bridge",
            "old | new",
            "!old",
            "old <-> new",
        ),
        *(
            "old*",
            "*",
            "^old",
            "old:*",
            "text:old",
            "text : old",
            "{text}: old",
            "-old",
            "+old",
            "old^2",
            '"old',
            "'old",
        ),
        *(
            "old' OR '1'='1",
            'old" OR "1"="1',
            "(old",
            "old)",
            "((",
            "old\\",
            "old:bridge",
            ":old",
            "%old%",
            "o_d",
            "old;--",
        ),
        *(
            "old\nbridge",
            "old\tbridge",
            "\u201eold\u201c",
            "old\u00a0bridge",
            "<old>",
            "$old",
            "@old",
            "#old",
            "old\x01",
        ),
    ],
)
def test_nothing_in_a_query_is_an_operator(conn: Connection, query: str) -> None:
    add(conn, "or and not near text the old bridge", "the new one")

    try:
        seqs = found(conn, query)
    except SearchQueryEmpty:
        assert not any(letter.isalnum() for letter in query)
        return

    assert seqs <= {1}


@pytest.mark.parametrize("query", ["", " ", "!?", "...", "\n", "'", '"', "()", "👍"])
def test_a_query_without_a_word_is_refused(conn: Connection, query: str) -> None:
    with pytest.raises(SearchQueryEmpty):
        search.find(conn, ANA, query, limit=10)


def test_the_words_of_operators_are_words(conn: Connection) -> None:
    add(conn, "to be or not to be", "to be")

    assert found(conn, "be OR") == {1}
    assert found(conn, "be AND not") == set()


@pytest.mark.parametrize(
    "text",
    [
        "Zażółć gęślą jaźń",
        "съешь ещё этих",
        "日本語の文",
        "foo_bar",
        "x1y2",
        "naïve",
        "İstanbul",
        "हिन्दी में",
        "Straße",
        "ΟΔΟΣ",
        "ﬁne",
        "²",
        "٣",
    ],
)
def test_a_text_is_found_by_its_own_first_word_whatever_the_script(conn: Connection, text: str) -> None:
    add(conn, text, "something else")

    assert found(conn, text.split()[0]) == {1}


@pytest.mark.parametrize(
    "text",
    [
        "notes.txt",
        "/etc/passwd",
        "ana@example.com",
        "https://example.com/a/b?c=d",
        "2026-01-02",
        "well-known",
        "v1.2.3",
    ],
)
def test_a_name_with_marks_in_it_is_found_as_it_is_written(conn: Connection, text: str) -> None:
    add(conn, f"look at {text} please", "something else")

    assert found(conn, text) == {1}


@pytest.mark.parametrize("query", ["passwd", "etc", "example", "com", "ana", "txt", "2026", "02", "known"])
def test_a_name_with_marks_in_it_is_found_by_a_part_of_it(conn: Connection, query: str) -> None:
    add(conn, "see notes.txt, /etc/passwd, ana@example.com, 2026-01-02 and well-known things", "something else")

    assert found(conn, query) == {1}


@pytest.mark.parametrize(("query", "text"), [("brücke", "DIE BRÜCKE"), ("ÉTÉ", "été"), ("МИР", "мир")])
def test_capitals_make_no_difference_in_any_script(conn: Connection, query: str, text: str) -> None:
    add(conn, text)

    assert found(conn, query) == {1}


@pytest.mark.parametrize(("query", "text"), [("cafe", "le café"), ("café", "le cafe")])
def test_accents_make_no_difference_where_the_engine_can_tell(conn: Connection, query: str, text: str) -> None:
    add(conn, text)

    assert found(conn, query) == ({1} if conn.dialect.name == "sqlite" else set())


@pytest.mark.parametrize(
    ("query", "text"), [("re\u0301sume\u0301", "mon résumé"), ("résumé", "mon re\u0301sume\u0301")]
)
def test_it_makes_no_difference_how_an_accent_is_written(conn: Connection, query: str, text: str) -> None:
    add(conn, text)

    assert found(conn, query) == {1}


def test_nobody_finds_what_others_said(conn: Connection) -> None:
    add(conn, "the bridge", principal=ANA, place=1)
    add(conn, "a cat", "the bridge", principal=BEN, place=2)

    assert found(conn, "bridge", ANA) == {1}
    assert found(conn, "bridge", BEN) == {2}
    assert found(conn, "bridge", PrincipalId("user:an")) == set()
    assert found(conn, "bridge", PrincipalId("")) == set()


def test_no_more_is_found_than_was_asked_for(conn: Connection) -> None:
    add(conn, *["the bridge"] * 7)

    assert len(search.find(conn, ANA, "bridge", limit=3)) == 3


def test_what_says_it_more_often_comes_first(conn: Connection) -> None:
    add(conn, "a bridge and a great many other words that matter less", "bridge bridge bridge")

    assert [hit.tape_seq for hit in search.find(conn, ANA, "bridge", limit=9)] == [2, 1]


def test_a_very_long_query_is_cut_and_harmless(conn: Connection) -> None:
    add(conn, " ".join(f"word{number}" for number in range(MAX_WORDS)))

    assert found(conn, " ".join(f"word{number}" for number in range(10_000))) == {1}
    assert found(conn, "x" * 100_000) == set()


def test_a_message_of_a_quarter_mebibyte_can_be_found(conn: Connection) -> None:
    add(conn, " ".join(f"w{number}" for number in range(40_000)), "x" * 250_000)

    assert found(conn, "w39999") == {1}
