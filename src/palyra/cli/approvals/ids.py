"""Finds the approval request that a person names: by id, by its code, or the last one."""

from collections.abc import Sequence

from palyra.cli.short_ids import IdNotFound, find_by_suffix, is_id_suffix
from palyra.core.errors import Invalid, NotFound
from palyra.core.events import ApprovalDecision
from palyra.core.policy.approval import Approval
from palyra.gateway.client.client import Client
from palyra.gateway.records.approvals import ApprovalPage

LISTED = 50


class ApprovalMissing(NotFound):
    """No such approval request. List them with `palyra approvals list --all`."""


class ApprovalAmbiguous(Invalid):
    """Several approval requests are pending, so `last` is ambiguous. List them with `palyra approvals`."""


def latest(client: Client, *, only_open: bool) -> ApprovalPage:
    """Return the latest approval requests."""
    return client.approvals.list(only_open=only_open, limit=LISTED)


def find_any(client: Client, name: str) -> str:
    """Return the id of an approval request, answered or not; the daemon knows only open ones by their codes."""
    if name != "last" and not is_id_suffix(name):
        return name
    approvals = latest(client, only_open=False).approvals
    return _last(approvals) if name == "last" else _by_ending(name, approvals)


def find_open(client: Client, name: str) -> str:
    """Return the id of a request to answer. If two are open, the last may not be the one that the person has seen."""
    if name != "last" and not is_id_suffix(name):
        return name
    approvals = latest(client, only_open=True).approvals
    if name != "last":
        return _by_ending(name, approvals)
    if len(approvals) > 1:
        raise ApprovalAmbiguous
    return _last(approvals)


def find_overdue(client: Client, name: str) -> str:
    """Return the id of a request to reissue; `last` is the last that was not answered in time."""
    if name != "last":
        return find_any(client, name)
    approvals = latest(client, only_open=False).approvals
    return _last(tuple(one for one in approvals if one.decision == ApprovalDecision.TIMED_OUT))


def _last(approvals: Sequence[Approval]) -> str:
    if not approvals:
        raise ApprovalMissing
    return approvals[0].approval_id


def _by_ending(name: str, approvals: Sequence[Approval]) -> str:
    try:
        return find_by_suffix(name, (one.approval_id for one in approvals))
    except IdNotFound:
        return name  # there may be more than were listed, and the daemon knows them all
