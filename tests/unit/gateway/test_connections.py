"""Which connections may stay: room for whoever has a token, whatever others do without one."""

from datetime import timedelta

import pytest

from palyra.core.ids import PrincipalId
from palyra.gateway.connections import ConnectionBudget, ConnectionLimits, ConnectionSlot
from tests.support.clock import FakeClock
from tests.support.connections import Peer, a_budget

ANA, BEN = PrincipalId("user:ana"), PrincipalId("user:ben")
HERE, THERE = "127.0.0.1", "192.0.2.7"


def admitted(budget: ConnectionBudget, number: int, host: str = HERE) -> list[tuple[Peer, ConnectionSlot]]:
    """Have so many come in."""
    made = [Peer() for _ in range(number)]
    return [(peer, budget.admit(host, peer)) for peer in made]


def aborted(connections: list[tuple[Peer, ConnectionSlot]]) -> list[bool]:
    return [peer.aborted for peer, _ in connections]


def test_limits_are_shares_of_the_whole() -> None:
    limits = ConnectionLimits(4096, 10)
    assert (limits.new, limits.new_per_address, limits.authenticated) == (1024, 512, 3072)
    assert [ConnectionLimits(number, 10).accepted_at_once for number in (16, 256, 4096)] == [1, 4, 32]


def test_the_oldest_new_connection_of_an_address_makes_room() -> None:
    budget = a_budget(16)
    others = admitted(budget, 2, THERE)
    mine = admitted(budget, 3)
    assert aborted(others) == [False, False]
    assert aborted(mine) == [True, False, False]
    assert (budget.open, budget.evicted) == (4, 1)


def test_the_oldest_new_connection_of_all_makes_room() -> None:
    budget = a_budget(16)
    hosts = [f"192.0.2.{number}" for number in range(6)]
    connections = [admitted(budget, 1, host)[0] for host in hosts]
    assert aborted(connections) == [True, True, False, False, False, False]


def test_a_request_under_way_keeps_no_place() -> None:
    """Some calls need no token and never end: whoever makes them could leave the last place to all others."""
    budget = a_budget(16)
    first, second = admitted(budget, 2)
    first[0].busy = True
    admitted(budget, 1)
    assert aborted([first, second]) == [True, False]


def test_an_authenticated_connection_never_makes_room_for_new_ones() -> None:
    budget = a_budget(16)
    [(peer, slot)] = admitted(budget, 1)
    slot.authenticated(ANA)
    admitted(budget, 1_000)
    assert not peer.aborted
    assert (budget.authenticated, budget.open) == (1, 3)
    slot.release()
    assert (budget.authenticated, budget.open) == (0, 2)


def test_a_token_that_is_not_valid_any_more_makes_it_new_again() -> None:
    budget = a_budget(16)
    [(peer, slot)] = admitted(budget, 1)
    slot.authenticated(ANA)
    slot.rejected()
    assert (budget.authenticated, budget.open) == (0, 1)
    admitted(budget, 2)
    assert peer.aborted


def test_a_connection_that_made_room_counts_no_more_whatever_becomes_of_it() -> None:
    budget = a_budget(16)
    [(peer, slot)] = admitted(budget, 1)
    admitted(budget, 2)
    assert peer.aborted
    slot.authenticated(ANA)
    slot.rejected()
    slot.release()
    assert (budget.authenticated, budget.open) == (0, 2)


def test_no_principal_shuts_out_another() -> None:
    budget = a_budget(16)
    anas = []
    for _ in range(budget.limits.authenticated):
        anas += admitted(budget, 1)
        anas[-1][1].authenticated(ANA)
    [(_, mine)] = admitted(budget, 1)
    mine.authenticated(BEN)
    assert mine.principal == BEN
    assert anas[0][1].principal is None
    assert budget.authenticated == budget.limits.authenticated
    # Of hers that are one too many, the latest counts as new, like one without a token.
    [(_, one_more)] = admitted(budget, 1)
    one_more.authenticated(ANA)
    assert one_more.principal is None


def test_a_new_connection_has_so_long_to_authenticate() -> None:
    clock = FakeClock()
    budget = a_budget(64, 10, clock=clock)
    (silent, _), (busy, _), (known, slot) = admitted(budget, 3)
    busy.busy = True
    slot.authenticated(ANA)
    clock.advance(timedelta(seconds=10))
    budget.sweep()
    assert (silent.left, budget.timed_out) == (0, 0)
    clock.advance(timedelta(seconds=1))
    budget.sweep()
    assert [peer.left for peer in (silent, busy, known)] == [1, 0, 0]
    # Its request is answered, and it has not shown a token by now.
    busy.busy = False
    budget.sweep()
    assert busy.left == 1
    assert silent.aborted, "it was asked to leave, and did not"
    assert budget.timed_out == 2


def test_an_authenticated_connection_leaves_when_it_keeps_us_waiting() -> None:
    budget = a_budget()
    [(peer, slot)] = admitted(budget, 1)
    slot.authenticated(ANA)
    peer.late = True
    budget.sweep()
    assert (peer.left, peer.aborted, budget.open) == (1, False, 1)
    budget.sweep()
    assert (peer.left, peer.aborted, budget.open) == (1, True, 0)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:192.0.2.1", "::ffff:192.0.2.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("192.0.2.1", "192.0.2.2", False),
    ],
)
def test_an_ipv6_address_counts_for_its_network(one: str, other: str, same: bool) -> None:
    budget = a_budget()
    [(_, first)], [(_, second)] = admitted(budget, 1, one), admitted(budget, 1, other)
    assert (first.address == second.address) is same


def test_new_limits_hold_for_who_comes_next() -> None:
    budget = a_budget(64)
    before = admitted(budget, 8)
    budget.adopt(ConnectionLimits(16, 10))
    assert not any(aborted(before))
    admitted(budget, 1)
    assert sum(aborted(before)) == 1
