"""The pages that are written from the code."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_reference_pages_are_fresh() -> None:
    checked = subprocess.run(
        [sys.executable, ROOT / "scripts" / "reference", "--check"], capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr


def test_every_error_code_belongs_to_one_error() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text()
    codes = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]
    assert [code for code, count in Counter(codes).items() if count > 1] == []
