"""The tool test's decisions, and how they get into the settings."""

import pytest

from palyra.cli.config.editor import edited
from palyra.cli.providers.settings import put_tools
from palyra.cli.providers.tool_probe import ToolChoice, choice_line, choose, seconds_for
from palyra.cli.providers.trial import TOO_SLOW, ProviderTestResult
from palyra.core.model.catalog import ToolMode
from palyra.core.model.provider_status import PROBE_CITY, ToolProbe

TABLE = """\
# Mine.
[model.providers.mine]
dialect = "openai"  # as most
model = "llama3.2:1b"

[approvals]
inbox = true
"""


def answered(**calls: str) -> ProviderTestResult:
    return ProviderTestResult(ok=True, model="mine/tiny", run_id="r", calls=(dict(calls),) if calls else ())


def failed(code: str) -> ProviderTestResult:
    return ProviderTestResult(ok=False, model="mine/tiny", run_id="r", code=code, reason="It failed.")


CALLED = answered(city=PROBE_CITY)
HELLO = answered()


def chosen(**trials: tuple[ProviderTestResult, ...]) -> tuple[ToolChoice, list[ToolMode | None], list[ToolProbe]]:
    """Choose with these trials for each way; return what was chosen, what was set, and what was asked."""
    written: list[ToolMode | None] = []
    asked: list[ToolProbe] = []
    left = {way: list(said) for way, said in trials.items()}

    def ask(probe: ToolProbe) -> ProviderTestResult:
        asked.append(probe)
        return left[str(written[-1])].pop(0)

    return choose(ask, written.append), written, asked


def test_the_first_way_that_works_is_taken() -> None:
    choice, written, asked = chosen(native=(CALLED, HELLO))
    assert (choice.mode, choice.tested, written) == ("native", True, ["native"])
    assert asked == [ToolProbe.CALL, ToolProbe.ANSWER]


@pytest.mark.parametrize(
    "native",
    [
        (HELLO,),
        (answered(city="London"),),
        (answered(town=PROBE_CITY),),
        (CALLED, CALLED),
        (failed("model_malformed"),),
        (failed("model_permission"),),
        (failed("model_unavailable"),),
        (failed(TOO_SLOW),),
        (CALLED, failed("model_timeout")),
    ],
)
def test_a_way_that_does_not_work_gives_way_to_the_next(native: tuple[ProviderTestResult, ...]) -> None:
    choice, written, _ = chosen(native=native, schema=(CALLED, HELLO))
    assert (choice.mode, written) == ("schema", ["native", "schema"])
    choice, written, _ = chosen(native=native, schema=(HELLO,))
    assert (choice.mode, choice.tested, written) == ("none", True, ["native", "schema", "none"])
    assert "native: " in choice.reason
    assert "schema: " in choice.reason


@pytest.mark.parametrize("code", ["model_network", "model_rate_limit", "model_quota", "budget_exceeded", "cancelled"])
def test_what_says_nothing_about_tools_leaves_the_default(code: str) -> None:
    choice, written, _ = chosen(native=(failed(code),))
    assert (choice.mode, choice.tested, written) == (None, False, ["native", None])
    choice, written, _ = chosen(native=(HELLO,), schema=(failed(code),))
    assert (choice.mode, written[-1]) == (None, None)


def test_a_server_that_fails_at_everything_decides_nothing() -> None:
    choice, written, _ = chosen(native=(failed("model_unavailable"),), schema=(failed("model_unavailable"),))
    assert (choice.mode, written) == (None, ["native", "schema", None])


def test_the_time_for_a_question_follows_the_hello_within_bounds() -> None:
    assert [seconds_for(ms) for ms in (None, 500, 10_000, 600_000)] == [20.0, 20.0, 40.0, 120.0]


def test_the_way_is_written_and_taken_out_again_without_a_trace() -> None:
    with_it = edited(TABLE, put_tools("mine", "llama3.2:1b", "schema"))
    assert '[model.providers.mine.models."llama3.2:1b"]\ntools = "schema"\n' in with_it
    assert with_it.startswith("# Mine.\n")
    assert 'dialect = "openai"  # as most' in with_it
    changed = edited(with_it, put_tools("mine", "llama3.2:1b", "none"))
    assert changed == with_it.replace('"schema"', '"none"')
    without = edited(changed, put_tools("mine", "llama3.2:1b", None))
    assert "models" not in without
    assert edited(without, put_tools("mine", "llama3.2:1b", None)) == without


def test_what_else_is_said_of_the_model_stays() -> None:
    text = TABLE + '\n[model.providers.mine.models."llama3.2:1b"]\nwindow_tokens = 4096  # as it was started\n'
    with_it = edited(text, put_tools("mine", "llama3.2:1b", "native"))
    assert "window_tokens = 4096  # as it was started" in with_it
    assert edited(with_it, put_tools("mine", "llama3.2:1b", None)) == text


def test_a_name_of_a_model_is_told_as_one_line() -> None:
    line = choice_line(ToolChoice(mode="none", tested=True, reason="no\nway"), "mine", "evil\nname")
    assert "\n" not in line
