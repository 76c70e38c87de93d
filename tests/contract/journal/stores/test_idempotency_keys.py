"""Idempotency keys: the same request has the same answer, another request is told so."""

import asyncio

import pytest

from palyra.journal.engines.base import Connection, Engine
from palyra.journal.stores import idempotency_keys
from palyra.journal.stores.idempotency_keys import IdempotencyClaim, IdempotencyKeyConflict
from tests.contract.journal.builders import BEN
from tests.support.builders import ANA

DAY_MS = 24 * 3600 * 1000
CLAIM = IdempotencyClaim(ANA, "envelope-1", "digest")


def test_a_new_key_has_no_answer(conn: Connection) -> None:
    assert idempotency_keys.answer(conn, CLAIM) is None


def test_the_same_request_under_the_same_key_has_the_same_answer(conn: Connection) -> None:
    assert idempotency_keys.keep(conn, CLAIM, '{"run_id":"1"}', now_ms=0)

    assert idempotency_keys.answer(conn, CLAIM) == '{"run_id":"1"}'


def test_another_request_under_the_same_key_is_refused(conn: Connection) -> None:
    idempotency_keys.keep(conn, CLAIM, "answer", now_ms=0)

    with pytest.raises(IdempotencyKeyConflict):
        idempotency_keys.answer(conn, IdempotencyClaim(ANA, "envelope-1", "other"))


def test_two_principals_may_use_the_same_key(conn: Connection) -> None:
    idempotency_keys.keep(conn, CLAIM, "ana's", now_ms=0)
    other = IdempotencyClaim(BEN, "envelope-1", "other")

    assert idempotency_keys.answer(conn, other) is None
    assert idempotency_keys.keep(conn, other, "ben's", now_ms=0)
    assert idempotency_keys.answer(conn, CLAIM) == "ana's"


def test_the_first_answer_under_a_key_stays(conn: Connection) -> None:
    assert idempotency_keys.keep(conn, CLAIM, "first", now_ms=0)
    assert not idempotency_keys.keep(conn, CLAIM, "second", now_ms=1)

    assert idempotency_keys.answer(conn, CLAIM) == "first"


def test_keys_differ_in_every_letter(conn: Connection) -> None:
    for place, key in enumerate(["key", "KEY", "key ", "kéy", "ke\u0301y"]):
        assert idempotency_keys.keep(conn, IdempotencyClaim(ANA, key, "digest"), str(place), now_ms=0)


async def test_of_many_at_once_under_one_key_only_one_is_kept(engine: Engine) -> None:
    kept = await asyncio.gather(
        *(
            engine.write(lambda conn, place=place: idempotency_keys.keep(conn, CLAIM, str(place), now_ms=0))  # type: ignore[misc]
            for place in range(10)
        )
    )

    assert sum(kept) == 1
    assert await engine.read(lambda conn: idempotency_keys.answer(conn, CLAIM)) == str(kept.index(True))


def test_a_key_is_kept_for_seven_days_and_forgotten_after(conn: Connection) -> None:
    idempotency_keys.keep(conn, CLAIM, "answer", now_ms=1_000)

    assert idempotency_keys.expire(conn, now_ms=1_000 + 7 * DAY_MS) == 0
    assert idempotency_keys.answer(conn, CLAIM) == "answer"
    assert idempotency_keys.expire(conn, now_ms=1_001 + 7 * DAY_MS) == 1
    assert idempotency_keys.answer(conn, CLAIM) is None


def test_old_keys_are_forgotten_in_slices_the_oldest_first(conn: Connection) -> None:
    for place in range(1_100):
        idempotency_keys.keep(conn, IdempotencyClaim(ANA, f"key {place}", "digest"), "answer", now_ms=place)
    idempotency_keys.keep(conn, CLAIM, "young", now_ms=8 * DAY_MS)

    assert idempotency_keys.expire(conn, now_ms=8 * DAY_MS) == 500
    assert idempotency_keys.answer(conn, IdempotencyClaim(ANA, "key 499", "digest")) is None
    assert idempotency_keys.answer(conn, IdempotencyClaim(ANA, "key 500", "digest")) == "answer"
    assert [idempotency_keys.expire(conn, now_ms=8 * DAY_MS) for _ in range(3)] == [500, 100, 0]
    assert idempotency_keys.answer(conn, CLAIM) == "young"
