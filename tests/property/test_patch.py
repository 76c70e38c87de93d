"""A difference that is applied gives the other text, whatever the texts are."""

import subprocess
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from palyra.core.errors import PalyraError
from palyra.tools.diff import counted, lines_of, unified
from palyra.tools.unified_patch import apply, parse
from tests.support.needs import GIT, needs

# Few different lines, so that hunks have neighbours that look alike; and lines that look like parts of a patch.
lines = st.sampled_from(("a", "b", "c", "", " ", "-- x", "++ y", "@@ -1 +1 @@", "\\ No", "ü\r", "\x0b\u2028", "\ttab"))
texts = st.lists(lines, max_size=25).map("\n".join) | st.text(st.characters(codec="utf-8"), max_size=40)
files = texts | st.none()


@given(files, files)
def test_a_difference_applied_gives_the_other_text(before: str | None, after: str | None) -> None:
    diff = unified(before, after, name="x.txt")
    if before == after:
        assert diff == ""
    elif (before or "") == (after or ""):
        # An empty file that comes or goes has no line that a hunk could name.
        assert "@@" not in diff
    else:
        (patch,) = parse(diff)
        assert apply(patch, before) == after


@given(texts, texts, st.lists(st.just("new\n"), max_size=9))
def test_a_patch_applies_where_its_lines_have_moved_to_or_not_at_all(before: str, after: str, above: list[str]) -> None:
    diff = unified(before, after, name="x.txt")
    if "@@" not in diff:
        return
    moved = "".join(above) + before
    try:
        result = apply(parse(diff)[0], moved)
    except PalyraError:
        return
    # Whatever place was chosen, exactly the lines that the patch names went and came.
    assert result is not None
    added, removed = counted(before, after)
    assert len(lines_of(result)) - len(lines_of(moved)) == added - removed


@given(texts, st.text(max_size=200))
def test_nonsense_is_refused_in_words(before: str, patch: str) -> None:
    # Nothing but an error of ours, which says what is wrong.
    with suppress(PalyraError):
        for one in parse(patch):
            apply(one, before)


@needs(GIT)
@given(texts, texts)
@settings(max_examples=30, deadline=None)
def test_the_patch_program_agrees(before: str, after: str) -> None:
    diff = unified(before, after, name="x.txt")
    if "@@" not in diff:
        return
    with TemporaryDirectory() as folder:
        file = Path(folder) / "x.txt"
        file.write_bytes(before.encode())
        done = subprocess.run(["git", "apply", "-"], cwd=folder, input=diff.encode(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (file.read_bytes() if file.exists() else b"") == after.encode()
