"""Tools that change files: what they say they would do is what they do, once, and it can be brought back."""

import asyncio
import os
import subprocess
from pathlib import Path

import pytest

from palyra.core.policy.effect import Effect
from palyra.core.tool import CallOutcome, JsonObject, Risk
from palyra.sandbox.files.workspace import Workspace
from palyra.tools.arguments import CallProblem, check
from palyra.tools.base import ToolContext
from palyra.tools.execution import ToolResult, execute
from palyra.tools.file_changes import MAX_DIFF_CHARS
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.support.needs import GIT, needs
from tests.unit.tools.shelf import Shelf
from tests.unit.tools.surroundings import StillClock, a_call

CATALOG = BUILTIN_ONLY.catalog(None)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "notes.txt").write_bytes(b"one\ntwo\nthree\n")
    (tmp_path / "docs" / "plan.md").write_bytes(b"plan\n")
    return tmp_path


async def act(root: Path, tool: str, shelf: Shelf | None = None, **arguments: object) -> ToolResult:
    context = ToolContext(workspace=Workspace((root,)), clock=StillClock(), storage=shelf or Shelf())
    finished = await execute(a_call(tool, dict(arguments)), catalog=CATALOG, context=context, timeout_ms=60_000)
    assert isinstance(finished, ToolResult)
    return finished


async def foresee(root: Path, tool: str, **arguments: object) -> Effect:
    found = CATALOG.get(tool)
    assert found is not None
    given = check(CATALOG, a_call(tool, dict(arguments)))
    assert not isinstance(given, CallProblem), given
    # A preview is given nowhere to keep things: it changes nothing.
    return await found.effect(ToolContext(workspace=Workspace((root,)), clock=StillClock()), given)


def everything(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


# -- writing and deleting


async def test_a_new_file_is_foreseen_kept_and_written(root: Path) -> None:
    before, shelf = everything(root), Shelf()
    effect = await foresee(root, "files.write", path="a/b.txt", text="x\ny\n")
    assert effect == Effect(
        risk=Risk.MEDIUM,
        summary="write a/b.txt (2 lines, new)",
        detail="--- /dev/null\n+++ b/a/b.txt\n@@ -0,0 +1,2 @@\n+x\n+y\n",
        paths=(str(root / "a" / "b.txt"),),
        kind=f"folder:{root / 'a'}",
    )
    assert everything(root) == before
    finished = await act(root, "files.write", shelf, path="a/b.txt", text="x\ny\n")
    assert finished == ToolResult(CallOutcome.OK, "a/b.txt was written: 4 bytes.")
    assert everything(root) == before | {"a/b.txt": b"x\ny\n"}
    assert [(kept.path, kept.before) for kept in shelf.checkpoints] == [(str(root / "a" / "b.txt"), None)]


async def test_creating_never_replaces(root: Path) -> None:
    finished = await act(root, "files.write", path="notes.txt", text="x")
    assert finished.outcome is CallOutcome.ERROR
    assert "already exists" in finished.text
    assert (root / "notes.txt").read_bytes() == b"one\ntwo\nthree\n"


async def test_replacing_shows_the_exact_difference_and_keeps_what_was_there(root: Path) -> None:
    shelf = Shelf()
    arguments = {"path": "notes.txt", "text": "one\n2\nthree\n", "mode": "replace"}
    effect = await foresee(root, "files.write", **arguments)
    assert effect.summary == "write notes.txt (+1 -1 lines)"
    assert effect.detail == "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    await act(root, "files.write", shelf, **arguments)
    assert (root / "notes.txt").read_bytes() == b"one\n2\nthree\n"
    assert shelf.checkpoints[0].before == b"one\ntwo\nthree\n"


async def test_appending_adds_at_the_end(root: Path) -> None:
    effect = await foresee(root, "files.write", path="notes.txt", text="four", mode="append")
    assert effect.summary == "append to notes.txt (+1 -0 lines)"
    await act(root, "files.write", path="notes.txt", text="four", mode="append")
    assert (root / "notes.txt").read_bytes() == b"one\ntwo\nthree\nfour"


async def test_what_is_there_already_is_not_written_again(root: Path) -> None:
    shelf = Shelf()
    finished = await act(root, "files.write", shelf, path="docs/plan.md", text="plan\n")
    assert "nothing was changed" in finished.text
    assert not shelf.checkpoints


async def test_deleting_is_high_risk_and_keeps_what_was_there(root: Path) -> None:
    shelf = Shelf()
    effect = await foresee(root, "files.delete", path="docs/plan.md")
    assert (effect.risk, effect.summary) == (Risk.HIGH, "delete docs/plan.md (5 bytes, deleted)")
    assert effect.detail.endswith("-plan\n")
    assert effect.kind == f"folder:{root / 'docs'}"
    await act(root, "files.delete", shelf, path="docs/plan.md")
    assert not (root / "docs" / "plan.md").exists()
    assert shelf.checkpoints[0].before == b"plan\n"
    assert (await act(root, "files.delete", path="docs/plan.md")).outcome is CallOutcome.ERROR


async def test_without_a_place_to_keep_what_was_there_nothing_is_changed(root: Path) -> None:
    context = ToolContext(workspace=Workspace((root,)), clock=StillClock())
    call = a_call("files.delete", {"path": "notes.txt"})
    finished = await execute(call, catalog=CATALOG, context=context, timeout_ms=60_000)
    assert isinstance(finished, ToolResult)
    assert finished.outcome is CallOutcome.ERROR
    assert (root / "notes.txt").exists()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (".bashrc", "x"),
        (".git/config", "x"),
        ("sub/.git/hooks/pre-commit", "x"),
        ("hooks/post-merge", "x"),
        (".github/workflows/ci.yml", "x"),
        ("sub/.vscode/tasks.json", "x"),
        ("sub/.pre-commit-config.yaml", "x"),
        ("sub/run.sh", "x"),
        ("sub/plain", "#!/bin/sh\n"),
        ("program", "x"),
        ("Makefile", "x"),
    ],
)
async def test_what_others_run_is_high_risk_and_asked_about_each_time(root: Path, path: str, text: str) -> None:
    (root / "program").write_bytes(b"old")
    (root / "program").chmod(0o755)
    effect = await foresee(root, "files.write", path=path, text=text, mode="replace")
    assert (effect.risk, effect.kind) == (Risk.HIGH, "")


async def test_what_comes_in_place_of_a_binary_file_is_shown_whole(root: Path) -> None:
    (root / "image").write_bytes(b"\x89PNG\0")
    effect = await foresee(root, "files.write", path="image", text="text", mode="replace")
    first, *diff = effect.detail.split("\n")
    assert first.startswith("file image: 5 bytes (sha256 ad91235e")
    assert " would become 4 bytes (sha256 " in first
    assert "+text" in diff


async def test_what_is_added_to_a_binary_file_is_shown_whole(root: Path) -> None:
    (root / "image").write_bytes(b"\x89PNG\0")
    effect = await foresee(root, "files.write", path="image", text="rm -rf x\n", mode="append")
    assert effect.detail.startswith("file image: 5 bytes (sha256 ad91235e")
    assert effect.detail.endswith(
        " stay, and this is appended:\n--- /dev/null\n+++ b/image\n@@ -0,0 +1,1 @@\n+rm -rf x\n"
    )


async def test_a_binary_file_that_is_deleted_is_told_by_size_and_digest(root: Path) -> None:
    (root / "image").write_bytes(b"\x89PNG\0")
    effect = await foresee(root, "files.delete", path="image")
    assert effect.detail.startswith("file image: 5 bytes (sha256 ad91235e")
    assert effect.detail.endswith(") would become nothing\n")


async def test_of_a_large_file_that_goes_only_size_and_digest_are_told_and_all_that_comes(root: Path) -> None:
    (root / "large.txt").write_bytes(b"old line\n" * (MAX_DIFF_CHARS // 8))
    effect = await foresee(root, "files.write", path="large.txt", text="new\n" * 300_000, mode="replace")
    assert effect.detail.startswith(f"file large.txt: {9 * (MAX_DIFF_CHARS // 8)} bytes (sha256 ")
    assert effect.detail.count("\n+new") == 300_000
    assert "-old line" not in effect.detail
    assert len((await foresee(root, "files.delete", path="large.txt")).detail) < 1000


async def test_no_character_of_a_text_makes_a_line_of_the_diff(root: Path) -> None:
    text = "a\r-b\u2028+c\x85 d\x0b@@ -1 +1 @@\x1b[2K\u202e\r\n"
    effect = await foresee(root, "files.write", path="x\n+++ b/y", text=text)
    assert effect.detail.split("\n") == [
        "--- /dev/null",
        "+++ b/x⟨LF⟩+++ b/y",
        "@@ -0,0 +1,1 @@",
        "+a⟨CR⟩-b⟨U+2028⟩+c⟨U+0085⟩ d⟨U+000B⟩@@ -1 +1 @@⟨ESC⟩[2K⟨U+202E⟩⟨CR⟩",
        "",
    ]
    assert effect.summary == "write x⟨LF⟩+++ b/y (1 line, new)"


async def test_a_line_can_not_pass_for_the_head_of_another_file(root: Path) -> None:
    (root / "run.sh").write_bytes(b"-- a/run.sh\n-- a comment\n")
    effect = await foresee(root, "files.write", path="run.sh", text="++ b/notes.txt\n-- a comment\n", mode="replace")
    assert effect.detail == (
        "--- a/run.sh\n+++ b/run.sh\n@@ -1,2 +1,2 @@\n-⟨U+002D⟩- a/run.sh\n+⟨U+002B⟩+ b/notes.txt\n -- a comment\n"
    )


async def test_a_change_of_line_ends_alone_is_seen(root: Path) -> None:
    effect = await foresee(root, "files.write", path="docs/plan.md", text="plan\r\n", mode="replace")
    assert effect.detail.endswith("-plan\n+plan⟨CR⟩\n")


@pytest.mark.parametrize("text", ["a\0b", "half \ud800"])
async def test_text_that_is_none_is_refused(root: Path, text: str) -> None:
    finished = await act(root, "files.write", path="x", text=text)
    assert finished.outcome is CallOutcome.ERROR
    assert not (root / "x").exists()


# -- patching

PATCH = """\
diff --git a/notes.txt b/notes.txt
index 123..456 100644
--- a/notes.txt
+++ b/notes.txt
@@ -1,3 +1,3 @@
 one
-two
+2
 three
--- a/docs/plan.md
+++ /dev/null
@@ -1 +0,0 @@
-plan
--- /dev/null
+++ b/new/x.txt
@@ -0,0 +1 @@
+x
\\ No newline at end of file
"""
PATCHED = {"notes.txt": b"one\n2\nthree\n", "new/x.txt": b"x"}


async def test_a_patch_changes_several_files_together(root: Path) -> None:
    shelf, before = Shelf(), everything(root)
    effect = await foresee(root, "files.patch", patch=PATCH)
    assert effect.summary == ("patch notes.txt (+1 -1 lines), docs/plan.md (5 bytes, deleted), new/x.txt (1 line, new)")
    assert (effect.risk, effect.kind, len(effect.paths)) == (Risk.HIGH, "", 3)
    tried = await act(root, "files.patch", shelf, patch=PATCH, dry_run=True)
    assert tried.text.startswith("The patch applies: notes.txt")
    assert (everything(root), shelf.checkpoints) == (before, [])
    await act(root, "files.patch", shelf, patch=PATCH)
    assert everything(root) == PATCHED
    assert len(shelf.checkpoints) == 3


async def test_a_dry_run_is_low_risk(root: Path) -> None:
    assert (await foresee(root, "files.patch", patch=PATCH, dry_run=True)).risk is Risk.LOW


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" three", " drei"),
        ("-plan", "-other"),
        ("+++ b/new/x.txt", "+++ b/notes.txt"),
        ("+++ b/new/x.txt", "+++ b/./notes.txt"),
        ("+++ b/new/x.txt", "+++ b/../x.txt"),
        ("@@ -0,0 +1 @@\n+x", "@@ -0,0 +1,2 @@\n+x"),
        ("--- /dev/null\n+++ b/new", "rename from a\n--- /dev/null\n+++ b/new"),
        ("index 123", "old mode 100644\nindex 123"),
    ],
)
async def test_a_patch_that_does_not_fit_wholly_is_applied_nowhere(root: Path, old: str, new: str) -> None:
    before, shelf = everything(root), Shelf()
    assert old in PATCH
    finished = await act(root, "files.patch", shelf, patch=PATCH.replace(old, new))
    assert finished.outcome is CallOutcome.ERROR
    assert (everything(root), shelf.checkpoints) == (before, [])


async def test_a_patch_whose_lines_have_moved_still_fits(root: Path) -> None:
    (root / "notes.txt").write_bytes(b"zero\n" * 20 + b"one\ntwo\nthree\n")
    await act(root, "files.patch", patch=PATCH)
    assert (root / "notes.txt").read_bytes() == b"zero\n" * 20 + b"one\n2\nthree\n"


async def test_a_misfit_tells_what_is_there(root: Path) -> None:
    finished = await act(root, "files.patch", patch=PATCH.replace("-two", "-deux"))
    assert "line 2 is 'two', and the patch has 'deux'" in finished.text


@needs(GIT)
async def test_what_git_says_of_any_names_and_of_empty_files_is_done(tmp_path: Path) -> None:
    names = ("plain.txt", "two words.txt", "grün/ä ö.txt", 'say "it".txt', "tab\there.txt", "b/b/x", "back\\slash")
    old, new, root = (tmp_path / folder for folder in ("old", "new", "root"))
    for place in (old, new, root):
        for number, name in enumerate(names):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(f"{number}\n" + "new\n" * (place is new))
        (place / "pkg").mkdir()
    for place in (old, root):
        (place / "pkg/gone here").write_text("")
        (place / "pkg/gone.txt").write_text("x\n")
    (new / "pkg/__init__.py").write_text("")
    (new / "pkg/ü.txt").write_text("")
    command = ["git", "diff", "--no-index", "--no-renames", "old", "new"]
    said = await asyncio.to_thread(subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, check=False)
    patch = said.stdout.replace("a/old/", "a/").replace("b/new/", "b/").replace("b/old/", "b/").replace("a/new/", "a/")
    finished = await act(root, "files.patch", patch=patch)
    assert finished.outcome is CallOutcome.OK, finished.text
    assert everything(root) == everything(new)


@pytest.mark.parametrize(
    "head",
    [
        "diff --git a/e b/f\nnew file mode 100644\nindex 0..1\n",
        "new file mode 100644\nindex 0..1\n",
        "diff --git a/docs/plan.md b/docs/plan.md\ndeleted file mode 100644\nindex 1..0\n",
        "diff --git a/notes.txt b/notes.txt\nnew file mode 100644\nindex 0..1\n",
    ],
)
async def test_nothing_of_a_patch_is_left_out_in_silence(root: Path, head: str) -> None:
    before = everything(root)
    assert (await act(root, "files.patch", patch=head)).outcome is CallOutcome.ERROR
    finished = await act(
        root, "files.patch", patch=head + "diff --git a/y b/y\n--- /dev/null\n+++ b/y\n@@ -0,0 +1 @@\n+y\n"
    )
    assert finished.outcome is CallOutcome.ERROR
    assert everything(root) == before


async def test_a_patch_of_too_many_files_is_refused_before_they_are_read(root: Path) -> None:
    one = "--- /dev/null\n+++ b/f{}\n@@ -0,0 +1 @@\n+x\n"
    finished = await act(root, "files.patch", patch="".join(map(one.format, range(20_000))))
    assert "20000 files; the maximum is 100" in finished.text


async def test_a_patch_of_files_that_are_too_much_together_is_refused(root: Path) -> None:
    for number in range(6):
        (root / f"f{number}").write_bytes(b"x\n" + b"y" * (7 << 20))
    one = "--- a/f{0}\n+++ b/f{0}\n@@ -1 +1 @@\n-x\n+z\n"
    finished = await act(root, "files.patch", patch="".join(map(one.format, range(6))))
    assert "The patch is too large" in finished.text
    assert (root / "f0").read_bytes().startswith(b"x")


async def test_lines_that_end_otherwise_are_named(root: Path) -> None:
    (root / "notes.txt").write_bytes(b"one\r\ntwo\r\nthree\r\n")
    assert "line 1 ends in \\r\\n" in (await act(root, "files.patch", patch=PATCH)).text
    (root / "notes.txt").write_bytes(b"one\r\ntwo\r\n")
    patch = "--- a/notes.txt\n+++ b/notes.txt\n@@ -1,2 +1,2 @@\n one\r\n-two\r\n+2\r\n"
    assert (await act(root, "files.patch", patch=patch)).outcome is CallOutcome.OK
    assert (root / "notes.txt").read_bytes() == b"one\r\n2\r\n"


async def test_a_mark_that_nobody_sees_does_not_keep_a_patch_from_fitting(root: Path) -> None:
    for patch in (PATCH, PATCH.replace(" one", " \ufeffone")):
        (root / "notes.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\nthree\n")
        (root / "docs/plan.md").write_bytes(b"plan\n")
        (root / "new/x.txt").unlink(missing_ok=True)
        assert (await act(root, "files.patch", patch=patch)).outcome is CallOutcome.OK
        assert (root / "notes.txt").read_bytes() == b"\xef\xbb\xbfone\n2\nthree\n"


@pytest.mark.parametrize("path", ["new/", "new/.", "docs/plan.md/", "~/.profile", "~", "~/"])
async def test_what_names_a_folder_or_a_home_is_no_file(root: Path, path: str) -> None:
    before = everything(root)
    assert (await act(root, "files.write", path=path, text="x", mode="replace")).outcome is CallOutcome.ERROR
    assert (await act(root, "files.delete", path=path)).outcome is CallOutcome.ERROR
    assert (everything(root), (root / "~").exists()) == (before, False)


async def test_texts_that_are_alike_in_every_other_line_are_compared_in_no_time(root: Path) -> None:
    """Whoever compares each with each of them takes minutes."""
    texts = ["".join(f"{mark}{number}\n\n" for number in range(500)) for mark in "uv"]
    (root / "notes.txt").write_text(texts[0])
    for _ in range(3):
        effect = await foresee(root, "files.write", path="notes.txt", text=texts[1], mode="replace")
        assert effect.detail.startswith("--- a/notes.txt")


async def test_a_file_that_is_no_text_is_not_patched(root: Path) -> None:
    (root / "notes.txt").write_bytes(b"\xff\xfe")
    assert "not UTF-8 text" in (await act(root, "files.patch", patch=PATCH)).text


# -- calls that were interrupted


async def test_a_change_that_took_effect_before_the_interruption_is_not_made_again(root: Path) -> None:
    shelf = Shelf()
    calls: list[tuple[str, JsonObject]] = [
        ("files.write", {"path": "notes.txt", "text": "more", "mode": "append"}),
        ("files.write", {"path": "fresh.txt", "text": "x"}),
        ("files.delete", {"path": "fresh.txt"}),
        ("files.patch", {"patch": PATCH.replace(" three\n", " three\n more\n\\ No newline at end of file\n", 1)}),
    ]
    calls[3][1]["patch"] = calls[3][1]["patch"].replace("@@ -1,3 +1,3 @@", "@@ -1,4 +1,4 @@")
    (root / "notes.txt").write_bytes(b"one\ntwo\nthree\n")
    for tool, arguments in calls:
        shelf = Shelf()
        first = await act(root, tool, shelf, **arguments)
        assert first.outcome is CallOutcome.OK, first
        after = everything(root)
        shelf.is_repeated = True
        assert (await act(root, tool, shelf, **arguments)).outcome is CallOutcome.OK
        assert everything(root) == after


async def test_a_change_that_did_not_come_about_is_made(root: Path) -> None:
    shelf = Shelf()
    before = everything(root)
    await act(root, "files.patch", shelf, patch=PATCH)
    for path, data in before.items():
        (root / path).write_bytes(data)
    os.unlink(root / "new" / "x.txt")
    shelf.is_repeated = True
    await act(root, "files.patch", shelf, patch=PATCH)
    assert everything(root) == PATCHED


async def test_a_patch_that_was_interrupted_half_way_is_applied_wholly(root: Path) -> None:
    shelf = Shelf()
    await act(root, "files.patch", shelf, patch=PATCH)
    (root / "docs" / "plan.md").write_bytes(b"plan\n")
    shelf.is_repeated = True
    await act(root, "files.patch", shelf, patch=PATCH)
    assert everything(root) == PATCHED


async def test_what_somebody_else_changed_since_the_interruption_is_left_alone(root: Path) -> None:
    shelf = Shelf()
    await act(root, "files.write", shelf, path="notes.txt", text="mine", mode="replace")
    (root / "notes.txt").write_bytes(b"by hand")
    shelf.is_repeated = True
    finished = await act(root, "files.write", shelf, path="notes.txt", text="mine", mode="replace")
    assert finished.outcome is CallOutcome.INTERRUPTED
    assert "is not known" in finished.text
    assert (root / "notes.txt").read_bytes() == b"by hand"
