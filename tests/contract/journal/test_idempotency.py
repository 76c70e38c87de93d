"""Idempotency keys: the same request has the same answer, another request is told so."""

import asyncio

import pytest

from palyra.journal import idempotency
from palyra.journal.engine import Connection, Engine
from palyra.journal.idempotency import Claim, IdempotencyKeyReused
from tests.contract.journal.builders import BEN
from tests.support.builders import ANA

DAY_MS = 24 * 3600 * 1000
CLAIM = Claim(ANA, "envelope-1", "digest")


def test_a_new_key_has_no_answer(conn: Connection) -> None:
    assert idempotency.answer(conn, CLAIM) is None


def test_the_same_request_under_the_same_key_has_the_same_answer(conn: Connection) -> None:
    assert idempotency.keep(conn, CLAIM, '{"run_id":"1"}', now_ms=0)

    assert idempotency.answer(conn, CLAIM) == '{"run_id":"1"}'


def test_another_request_under_the_same_key_is_refused(conn: Connection) -> None:
    idempotency.keep(conn, CLAIM, "answer", now_ms=0)

    with pytest.raises(IdempotencyKeyReused):
        idempotency.answer(conn, Claim(ANA, "envelope-1", "other"))


def test_two_principals_may_use_the_same_key(conn: Connection) -> None:
    idempotency.keep(conn, CLAIM, "ana's", now_ms=0)
    other = Claim(BEN, "envelope-1", "other")

    assert idempotency.answer(conn, other) is None
    assert idempotency.keep(conn, other, "ben's", now_ms=0)
    assert idempotency.answer(conn, CLAIM) == "ana's"


def test_the_first_answer_under_a_key_stays(conn: Connection) -> None:
    assert idempotency.keep(conn, CLAIM, "first", now_ms=0)
    assert not idempotency.keep(conn, CLAIM, "second", now_ms=1)

    assert idempotency.answer(conn, CLAIM) == "first"


def test_keys_differ_in_every_letter(conn: Connection) -> None:
    for place, key in enumerate(["key", "KEY", "key ", "kéy", "ke\u0301y"]):
        assert idempotency.keep(conn, Claim(ANA, key, "digest"), str(place), now_ms=0)


async def test_of_many_at_once_under_one_key_only_one_is_kept(engine: Engine) -> None:
    kept = await asyncio.gather(
        *(
            engine.write(lambda conn, place=place: idempotency.keep(conn, CLAIM, str(place), now_ms=0))  # type: ignore[misc]
            for place in range(10)
        )
    )

    assert sum(kept) == 1
    assert await engine.read(lambda conn: idempotency.answer(conn, CLAIM)) == str(kept.index(True))


def test_a_key_is_kept_for_seven_days_and_forgotten_after(conn: Connection) -> None:
    idempotency.keep(conn, CLAIM, "answer", now_ms=1_000)

    assert idempotency.expire(conn, now_ms=1_000 + 7 * DAY_MS) == 0
    assert idempotency.answer(conn, CLAIM) == "answer"
    assert idempotency.expire(conn, now_ms=1_001 + 7 * DAY_MS) == 1
    assert idempotency.answer(conn, CLAIM) is None


def test_old_keys_are_forgotten_in_slices_the_oldest_first(conn: Connection) -> None:
    for place in range(1_100):
        idempotency.keep(conn, Claim(ANA, f"key {place}", "digest"), "answer", now_ms=place)
    idempotency.keep(conn, CLAIM, "young", now_ms=8 * DAY_MS)

    assert idempotency.expire(conn, now_ms=8 * DAY_MS) == 500
    assert idempotency.answer(conn, Claim(ANA, "key 499", "digest")) is None
    assert idempotency.answer(conn, Claim(ANA, "key 500", "digest")) == "answer"
    assert [idempotency.expire(conn, now_ms=8 * DAY_MS) for _ in range(3)] == [500, 100, 0]
    assert idempotency.answer(conn, CLAIM) == "young"
