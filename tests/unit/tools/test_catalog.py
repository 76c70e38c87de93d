"""A run sees the tools it may use, always in the same order."""

import msgspec

from palyra.core.tool import Risk
from palyra.tools.toolbox import BUILTIN_ONLY

BUILT_IN = (
    "agent.delegate",
    "artifact.read",
    "files.delete",
    "files.list",
    "files.patch",
    "files.read",
    "files.search",
    "files.write",
    "http.fetch",
    "shell.run",
    "time.now",
    "wasm.run",
)


def test_all_built_in_tools_are_found_in_order() -> None:
    assert BUILTIN_ONLY.catalog(None).names() == BUILT_IN
    assert tuple(spec.name for spec in BUILTIN_ONLY.catalog(None).specs()) == BUILT_IN


def test_only_allowed_tools_are_seen_and_unknown_names_passed_over() -> None:
    catalog = BUILTIN_ONLY.catalog(("time.now", "files.enchant", "files.list"))
    assert catalog.names() == ("files.list", "time.now")
    assert catalog.get("files.read") is None
    assert BUILTIN_ONLY.catalog(()).specs() == ()


def test_a_tool_is_found_by_its_name() -> None:
    tool = BUILTIN_ONLY.catalog(None).get("files.read")
    assert tool is not None
    assert tool.spec.name == "files.read"


def test_what_only_reads_may_be_repeated_and_does_no_harm() -> None:
    for spec in BUILTIN_ONLY.catalog(None).specs():
        if spec.read_only:
            assert spec.risk is Risk.LOW
            assert spec.repeatable


def test_what_changes_files_is_never_low_risk() -> None:
    risks = {spec.name: spec.risk for spec in BUILTIN_ONLY.catalog(None).specs()}
    assert [risks[name] for name in ("files.write", "files.patch")] == [Risk.MEDIUM, Risk.MEDIUM]
    assert risks["files.delete"] is Risk.HIGH
    assert risks["shell.run"] is Risk.MEDIUM


def test_the_tools_take_little_of_a_prompt() -> None:
    shown = [(spec.name, spec.description, spec.parameters) for spec in BUILTIN_ONLY.catalog(None).specs()]
    assert len(msgspec.json.encode(shown)) / 4 < 950


def test_every_tool_says_what_it_does() -> None:
    for spec in BUILTIN_ONLY.catalog(None).specs():
        assert spec.description.endswith(".")
        assert spec.parameters["additionalProperties"] is False
