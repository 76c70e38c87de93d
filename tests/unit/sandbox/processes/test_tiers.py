"""What is said of a sandbox that could not be set up."""

import pytest

from palyra.sandbox.base import Tier
from palyra.sandbox.processes.tiers import set_up_failed


@pytest.mark.parametrize(
    ("said", "reason", "remedy"),
    [
        ("No permissions to create new namespace", "may not create namespaces", "userns_clone=1"),
        ("setting up uid map: Permission denied", "may not create namespaces", "userns_clone=1"),
        ("loopback: Failed RTM_NEWADDR: Operation not permitted", "may not create namespaces", "userns_clone=1"),
        (
            "Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded (ENOSPC)",
            "may not create namespaces",
            "user.max_user_namespaces=10000",
        ),
        ("Can't mount proc on /newroot/proc: Operation not permitted", "a part of /proc is covered", "systempaths="),
    ],
)
def test_the_words_of_bubblewrap_lead_to_what_helps(said: str, reason: str, remedy: str) -> None:
    lack = set_up_failed(Tier.STRICT, said)
    assert reason in lack.reason
    assert said in lack.reason
    assert remedy in lack.remedy
