"""No function is longer than two screens."""

import ast
from collections.abc import Iterator
from pathlib import Path

import palyra

MAX_LINES = 100
SOURCE = Path(palyra.__file__).parent


def test_no_function_has_more_lines_than_two_screens() -> None:
    too_long = [
        f"{path.relative_to(SOURCE)}:{function.lineno} {function.name}: {lines} lines"
        for path in SOURCE.rglob("*.py")
        for function in _functions(path)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > MAX_LINES
    ]
    assert not too_long


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node
