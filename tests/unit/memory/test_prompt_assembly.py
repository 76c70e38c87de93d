"""What stands before the conversation, and how much room it leaves."""

import msgspec

from palyra.core.agent import Agent
from palyra.core.limits import LimitKind
from palyra.core.model.prompt import Message, Role, estimate_tokens
from palyra.core.projection.changes import StoredMessage
from palyra.core.run.state import RunState
from palyra.core.tool import ToolSpec
from palyra.journal.engines.base import FailureListener, Listener, Unit
from palyra.memory.history import HistoryCache, NewMessages
from palyra.memory.prompt_assembly import ANSWER_SHARE, RULES, AssembledPrompt, PromptAssembler, PromptSources
from palyra.tools.toolbox import BUILTIN_ONLY
from tests.support.builders import AGENT, ANA, RUN, SESSION, a_limit, a_run
from tests.support.world import T

TOOLS = BUILTIN_ONLY.catalog(None).specs()


class NoEngine:
    """An engine that is not asked."""

    async def write(self, unit: Unit[T]) -> T:
        raise AssertionError

    async def read(self, query: Unit[T]) -> T:
        raise AssertionError

    def subscribe(self, listener: Listener) -> None:
        raise AssertionError

    def on_failure(self, listener: FailureListener) -> None:
        raise AssertionError

    async def close(self) -> None:
        raise AssertionError


def an_agent(instructions: str = "Be brief.") -> Agent:
    return Agent(agent_id=AGENT, principal=ANA, name="main", instructions=instructions)


def assemble(
    *texts: str,
    state: RunState | None = None,
    agent: Agent | None = None,
    tools: tuple[ToolSpec, ...] = TOOLS,
    window: int = 100_000,
    halved: int = 0,
) -> AssembledPrompt:
    kept = [
        StoredMessage(place, RUN, Message(role=Role.USER, text=text), estimate_tokens(text), (), 0)
        for place, text in enumerate(texts, start=1)
    ]
    fresh = NewMessages(0, len(kept), kept, complete=True)
    seen = PromptSources(agent or an_agent(), HistoryCache().take_in(SESSION, fresh, maximum=100_000))
    return PromptAssembler(NoEngine()).assemble(state or a_run(), seen, tools, window_tokens=window, halved=halved)


def test_the_agents_instructions_come_first_and_the_rules_after_them() -> None:
    assert assemble("Hello.").prompt.system == f"Be brief.\n\n{RULES}"
    assert assemble("Hello.", agent=an_agent("")).prompt.system == RULES


def test_a_run_at_its_limit_is_told_which_and_what_to_do() -> None:
    system = assemble("Hello.", state=a_run(a_limit(LimitKind.TOOL_CALLS)), tools=()).prompt.system
    assert "reached its limit (tool calls)" in system
    assert "what is unfinished" in system


def test_the_prompt_has_the_tools_it_is_given() -> None:
    assert assemble("Hello.").prompt.tools == TOOLS
    assert assemble("Hello.", tools=()).prompt.tools == ()


def test_a_part_of_the_window_is_left_for_the_answer() -> None:
    fixed = assemble().estimated_tokens
    window = 4_000
    room = window - window // ANSWER_SHARE - fixed
    fits = ["x" * 40] * (room // 10)
    assert assemble(*fits, window=window).estimated_tokens <= window - window // ANSWER_SHARE


def test_the_estimate_counts_what_stands_before_the_conversation_and_the_conversation() -> None:
    system = assemble().prompt.system
    before = estimate_tokens(system + msgspec.json.encode(TOOLS).decode())
    assert assemble().estimated_tokens == before
    assert assemble("x" * 400).estimated_tokens == before + 100


def test_the_digest_is_of_what_stands_before_the_conversation() -> None:
    digest = assemble("Hello.").digest
    assert assemble("Good bye.").digest == digest
    assert assemble("Hello.", agent=an_agent("Be verbose.")).digest != digest
    assert assemble("Hello.", tools=()).digest != digest


def test_a_window_smaller_than_the_tools_still_shows_the_input() -> None:
    assembled = assemble("Hello.", window=10)
    assert [message.text for message in assembled.prompt.messages] == ["Hello."]
