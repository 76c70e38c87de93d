"""`scripts/words`: which texts, error codes, file names and commit titles it rejects."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ERRORS = "class PalyraError(Exception): ...\n\n\nclass Invalid(PalyraError): ...\n\n\n"


def problems(folder: Path, files: dict[str, str]) -> list[str]:
    """Return what is wrong with the words of a repository that has these files."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    done = subprocess.run([sys.executable, ROOT / "scripts/words", folder], capture_output=True, text=True, check=False)
    assert done.returncode == (1 if done.stderr else 0)
    return done.stderr.splitlines()[:-1]


@pytest.mark.parametrize(
    "text",
    [
        "It can not be read.",
        "The file is no folder.",
        "Somebody else holds it.",
        "Pull the brake.",
        "It waits for your word.",
        "The run is put away.",
        "Start it anew.",
        "It is not to be had.",
        'It can"\n    " not be read.',
    ],
)
def test_forbidden_words_in_a_message_are_found(tmp_path: Path, text: str) -> None:
    (found,) = problems(tmp_path, {"src/palyra/a.py": f'x = 1\nprint(\n    "{text}"\n)\n'})
    assert found.startswith("src/palyra/a.py:3: ")


@pytest.mark.parametrize(
    "text", ["It cannot be read.", "There is no such file.", "It is no longer active.", "outdoors"]
)
def test_plain_words_in_a_message_pass(tmp_path: Path, text: str) -> None:
    assert problems(tmp_path, {"src/palyra/a.py": f'print(\n    "{text}"\n)\n'}) == []


def test_of_docstrings_only_those_that_users_see_are_checked(tmp_path: Path) -> None:
    code = '''"""Can not."""

class A(Exception):
    """It can not be read."""

    x: int
    """Can not."""

def f() -> None:
    """Can not."""

@click.command()
def g() -> None:
    """Say what can not be read."""
'''
    assert [found.split(": ")[0] for found in problems(tmp_path, {"src/palyra/a.py": code})] == [
        "src/palyra/a.py:4",
        "src/palyra/a.py:14",
    ]


def test_documents_are_checked_and_code_in_them_is_not(tmp_path: Path) -> None:
    files = {
        "docs/guides/a.md": "One.\nIt can not run.\n",
        "README.md": "The option `--brake` is fine.\n",
        "proto/a/v1/a.proto": "// The brake.\n",
    }
    assert problems(tmp_path, files) == ["docs/guides/a.md:2: 'can not'", "proto/a/v1/a.proto:1: 'brake'"]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("NoSession", "no_session"),
        ("SessionGone", "session_gone"),
        ("NotFoundSession", "not_found_session"),
        ("Missing", "missing"),
    ],
)
def test_an_error_code_outside_the_scheme_is_found(tmp_path: Path, name: str, code: str) -> None:
    (found,) = problems(tmp_path, {"src/palyra/a.py": f"{ERRORS}class {name}(Invalid): ...\n"})
    assert found == f"{name}: the code {code} is not of the form noun_problem"


def test_a_code_that_is_set_by_hand_is_checked_as_well(tmp_path: Path) -> None:
    code = f'{ERRORS}class SessionNotFound(Invalid):\n    code: ClassVar[str] = "no_session"\n'
    assert problems(tmp_path, {"src/palyra/a.py": code}) == [
        "SessionNotFound: the code no_session is not of the form noun_problem"
    ]


def test_two_classes_with_one_code_are_found(tmp_path: Path) -> None:
    files = {"src/palyra/a.py": f"{ERRORS}class FileExists(Invalid): ...\n"}
    assert problems(tmp_path, files) == []
    files["src/palyra/b.py"] = 'class Other(Invalid):\n    code = "file_exists"\n'
    assert problems(tmp_path, files) == ["Other and FileExists: both have the code file_exists"]


@pytest.mark.parametrize("name", ["src/palyra/utils.py", "src/palyra/runs/book.py", "tests/support/helpers.py"])
def test_a_misleading_file_name_is_found(tmp_path: Path, name: str) -> None:
    assert problems(tmp_path, {name: ""}) == [f"{name}: the name does not say what is in it"]


@pytest.mark.parametrize(
    ("title", "problem"),
    [
        ("Resume a run after the daemon was killed", None),
        ("providers: accept servers that do not stream", None),
        ("a" * 73, "73 characters"),
        ("Resume a run.", "period"),
        ("resume a run", "lower-case"),
        ("Let somebody in", "somebody"),
        ("", "empty"),
    ],
)
def test_the_hook_checks_the_title_of_a_commit(tmp_path: Path, title: str, problem: str | None) -> None:
    message = tmp_path / "message"
    message.write_text(f"{title}\n\nThe body can not be wrong.\n")
    done = subprocess.run([ROOT / "scripts/hooks/commit-msg", message], capture_output=True, text=True, check=False)
    assert done.returncode == (0 if problem is None else 1)
    assert (problem or "") in done.stderr
