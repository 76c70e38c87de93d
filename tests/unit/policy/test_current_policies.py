"""The policies in force, and their exchange."""

import subprocess
import sys
from pathlib import Path

import pytest

from palyra.core.tool import Risk, Verdict
from palyra.home import Home
from palyra.policy.current_policies import CurrentPolicies
from palyra.policy.loader import PolicyInvalid
from tests.unit.policy.asking import a_question, write_policy

DENY_ALL = '@id("stop") forbid (principal, action, resource);'


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_changed_file_counts_once_it_is_adopted(home: Home) -> None:
    current = CurrentPolicies(home)
    before = current.gate
    write_policy(home, DENY_ALL)
    assert current.gate.judge(a_question(Risk.LOW), ()).verdict is Verdict.ALLOW
    current.adopt(current.read())
    assert current.gate.judge(a_question(Risk.LOW), ()).verdict is Verdict.DENY
    assert current.hash == current.gate.policy_hash != before.policy_hash
    assert before.judge(a_question(Risk.LOW), ()).verdict is Verdict.ALLOW


def test_a_wrong_file_leaves_what_is_in_force(home: Home) -> None:
    write_policy(home, DENY_ALL)
    current = CurrentPolicies(home)
    before = current.hash
    path = write_policy(home, "nonsense;")
    with pytest.raises(PolicyInvalid, match=f"{path}:1:"):
        current.read()
    assert current.hash == before
    assert current.gate.judge(a_question(Risk.LOW), ()).verdict is Verdict.DENY


def test_a_wrong_file_is_told_at_the_start(home: Home) -> None:
    write_policy(home, "nonsense;")
    with pytest.raises(PolicyInvalid):
        CurrentPolicies(home)


def test_the_engine_is_not_started_before_something_is_judged(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from palyra.home import Home;"
        "from palyra.policy.current_policies import CurrentPolicies;"
        "assert CurrentPolicies(Home(Path(sys.argv[1]))).hash; assert 'cedarpy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, tmp_path], check=True)
