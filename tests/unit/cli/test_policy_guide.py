"""What the guide shows is tried as it stands there."""

import re
from pathlib import Path

from tests.unit.cli.door import Cli

GUIDE = Path(__file__).parents[3] / "docs/guides/policy.md"


def blocks(language: str) -> str:
    return "\n".join(re.findall(rf"```{language}\n(.*?)```", GUIDE.read_text(), re.DOTALL))


def test_the_examples_of_the_guide_do_what_it_says(cli: Cli, tmp_path: Path) -> None:
    policies, cases = tmp_path / "examples.cedar", tmp_path / "cases.toml"
    policies.write_text(blocks("cedar"))
    cases.write_text(blocks("toml"))
    assert cli("policy", "check", str(policies)).out == "No problems (1 file, 7 policies).\n"
    result = cli("policy", "test", str(cases), "--policy", str(policies))
    assert result.out == "12 cases passed.\n"
