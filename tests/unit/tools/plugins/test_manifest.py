"""What a manifest says is taken as it is meant, and everything else is refused with what to do about it."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palyra.core.errors import PalyraError
from palyra.core.tool import Risk
from palyra.sandbox.wasm.module import ModuleLimits
from palyra.tools.catalog import BUILTIN
from palyra.tools.plugins.manifest import RESERVED, PluginInvalid, PluginNetworkUnsupported, read
from tests.support.plugins import EXAMPLES, TOOL, manifest

WRITES = '[[folders]]\nname = "data"\naccess = "write"\n'


def refused(text: str) -> str:
    with pytest.raises(PluginInvalid) as fault:
        read(text.encode())
    return fault.value.detail


def test_the_examples_are_in_order() -> None:
    names = [read(path.read_bytes()).name for path in sorted(EXAMPLES.glob("*/plugin.toml"))]
    assert names == ["csv-stats", "units"]


def test_what_is_left_out_has_a_meaning() -> None:
    found = read(manifest().encode())
    assert (found.folders, found.hosts) == ((), ())
    [tool] = found.tools
    assert (tool.risk, tool.read_only, tool.repeatable) == (Risk.LOW, False, False)
    assert found.limits.bounds == ModuleLimits()


def test_limits_are_those_of_the_module() -> None:
    limits = "[limits]\nfuel = 1000\nseconds = 2\nmemory_mb = 3\noutput_kb = 4\n"
    bounds = read(manifest(rest=TOOL + limits).encode()).limits.bounds
    assert bounds == ModuleLimits(
        fuel=1000, wall=timedelta(seconds=2), memory_bytes=3 * 1024 * 1024, output_bytes=4 * 1024
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (manifest(top='desciption = "x"'), "unknown key 'desciption'. Did you mean description?"),
        (manifest(rest=TOOL + "readonly = true"), "'readonly' in tools number 1. Did you mean read_only?"),
        (manifest(rest=TOOL + "[limits]\nmemory = 4"), "'memory' in limits. Did you mean memory_mb?"),
        (manifest(rest=TOOL + '[[folders]]\nname = "a"\npath = "/"'), "'path' in folders number 1. Known keys: name,"),
        (manifest(top="tools = 3", rest=""), "Expected `array`"),
        (manifest(rest=""), "missing required field `tools`"),
        (manifest(top="tools = []", rest=""), "length >= 1"),
        (manifest(name="../x"), "the name '../x' must have up to 40 lower-case letters"),
        (manifest(name="Probe"), "must have up to 40 lower-case letters"),
        (manifest(name="files"), "is reserved"),
        (manifest(version="latest and greatest"), "must be like 1.2.0"),
        (manifest().replace("probe.wasm", "../probe.wasm"), "must be the name of a .wasm file beside plugin.toml"),
        (manifest().replace('sha256 = "', 'sha256 = "x'), "64 hexadecimal digits"),
        (manifest(rest=TOOL + TOOL), "there are two tools 'run'"),
        (manifest(rest=TOOL.replace('"run"', '"run.it"')), "the tool 'run.it' must have"),
        (manifest(rest=TOOL + WRITES + WRITES), "there are two folders 'data'"),
        (manifest(rest=TOOL + WRITES.replace("data", "/etc")), "the folder '/etc' must have"),
        (manifest(rest=TOOL + WRITES.replace("write", "everything")), "Invalid enum value 'everything'"),
        (manifest(rest=TOOL + 'risk = "none"'), "Invalid enum value 'none'"),
        (manifest(rest=TOOL + "[limits]\nseconds = 0"), "`int` >= 1"),
        (manifest(rest=TOOL + "[limits]\nmemory_mb = 1000000"), "`int` <= 2048"),
        (manifest(rest=TOOL + '[tools.parameters]\ntype = "string"'), "the parameters of run: The schema"),
        ("name = ", "is not TOML"),
        ("x = 1\n" * 100_000, "is longer than 256 KiB"),
    ],
)
def test_what_is_wrong_is_refused_with_what_to_do(text: str, words: str) -> None:
    assert words in refused(text)


def test_a_host_is_refused_since_modules_have_no_network() -> None:
    with pytest.raises(PluginNetworkUnsupported) as fault:
        read(manifest(top='hosts = ["example.org"]').encode())
    assert "modules have no network" in fault.value.detail
    assert "http.fetch" in fault.value.detail


def test_no_plugin_can_take_the_name_of_a_built_in_family() -> None:
    assert {tool.spec.name.split(".")[0] for tool in BUILTIN} <= RESERVED


@pytest.mark.parametrize(
    ("tool", "risk"),
    [
        (TOOL, Risk.MEDIUM),
        (TOOL + 'risk = "high"\n', Risk.HIGH),
        (TOOL + "read_only = true\n", Risk.LOW),
        (TOOL + 'read_only = true\nrisk = "critical"\n', Risk.CRITICAL),
    ],
)
def test_the_risk_is_never_below_what_the_powers_imply(tool: str, risk: Risk) -> None:
    found = read(manifest(rest=tool + WRITES).encode())
    assert found.risk_of(found.tools[0]) is risk


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_no_content_gets_past_as_something_else_than_a_refusal(content: bytes) -> None:
    with pytest.raises(PalyraError):
        read(content)
