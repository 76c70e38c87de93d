"""Cedar, the language and the engine: what is wrong with policies, and what they say about a request.

The engine is imported by the warm-up of the daemon or when it is first needed, and not by a start. Most of its memory,
7 of 9 MB, is touched by the first judgement.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from palyra.policy.entities import Request
from palyra.policy.source import Policy, Problem, locate, too_deep

if TYPE_CHECKING:
    import cedarpy

RUN = "run"
ASK = "ask"

_KEPT_ENTITIES = 256
_DEEPEST = 100
_ERRED = re.compile(r"`policy(\d+)`")
_NUMBERED = re.compile(r"(for policy )?`policy\d+`,? ?")
# Said once more of a policy whose scope names something that is not there.
_FOLLOWS = "unable to find an applicable action"
_SEE = "docs/guides/policy.md shows how policies are written."


@dataclass(frozen=True, slots=True)
class Answer:
    """What the policies say about one action."""

    permitted: bool
    policies: tuple[str, ...]
    """The ids of those that made the difference."""
    errors: tuple[str, ...] = ()
    """What went wrong; if anything did, the answer counts for nothing."""
    erred: tuple[str, ...] = ()
    """The ids of the policies in which it went wrong."""


@cache
def schema_text() -> str:
    """Return what policies can speak about, as text."""
    return resources.files(__package__).joinpath("palyra.cedarschema").read_text("utf-8")


def find_problems(policies: Sequence[Policy]) -> list[Problem]:
    """Return everything that is wrong with the policies, by the language and by the schema."""
    found = [problem for policy in policies if (problem := _syntax(policy)) is not None]
    # The schema can only be asked about texts that can be read.
    return found or _against_schema(policies)


class Engine:
    """Policies, ready to be asked."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        import cedarpy

        self._ids = [policy.id for policy in policies]
        self._ask = cedarpy.is_authorized_batch
        self._decisions = cedarpy.Decision
        self._policies = cedarpy.PolicySet.from_str("\n".join(policy.text for policy in policies))
        schema = cedarpy.Schema.from_str(schema_text())
        # Who and what requests name, kept for the next request of the same. Several threads may judge at once.
        self._known = lru_cache(_KEPT_ENTITIES)(partial(cedarpy.Entities.from_json_str, schema=schema))

    def decide(self, request: Request) -> tuple[Answer, Answer]:
        """Return what the policies say about running without a question, and about running after one."""
        try:
            context = msgspec.json.encode(request.context).decode()
            asked = [
                {
                    "principal": request.principal,
                    "action": _action(name),
                    "resource": request.resource,
                    "context": context,
                }
                for name in (RUN, ASK)
            ]
            # The context is ours and fits the schema, which a test proves. Having it checked each time would take as
            # long again; and what does not fit makes policies err, which denies.
            given = self._ask(asked, self._policies, self._known(request.entities))
        except ValueError as error:
            # Entities that the schema does not know, or text that is no Unicode.
            failed = Answer(False, (), (str(error),))
            return failed, failed
        run, ask = (self._answer(result) for result in given)
        return run, ask

    def _answer(self, result: "cedarpy.AuthzResult") -> Answer:
        diagnostics = result.diagnostics
        errors = tuple(diagnostics.errors)
        if result.decision is self._decisions.NoDecision and not errors:
            errors = ("the engine came to no decision",)
        reasons = sorted(int(name.removeprefix("policy")) for name in diagnostics.reasons)
        erred = [self._ids[int(number)] for error in errors for number in _ERRED.findall(error)[:1]]
        return Answer(result.allowed, tuple(self._ids[number] for number in reasons), errors, tuple(erred))


@cache
def _action(name: str) -> dict[str, str]:
    return {"type": "Action", "id": name}


def _syntax(policy: Policy) -> Problem | None:
    if (deep := too_deep(policy.text, most=_DEEPEST)) is not None:
        # The engine does not refuse it: it takes the whole process down.
        what = f"The policy can not be read: more than {_DEEPEST} brackets stand in one another."
        return policy.problem(what, "Make several policies of it.", offset=deep)
    message = _parse(policy.text)
    if message:
        what = f"The policy can not be read: {message}."
        return policy.problem(what, _SEE, offset=locate(policy.text, message, parse=_parse))
    if "?" in policy.text and _is_template(policy.text):
        return policy.problem("This is a template.", "Write the policy out: templates are not used here.")
    return None


def _parse(text: str) -> str:
    """Return what the engine says about a text that it can not read, or nothing."""
    import cedarpy

    try:
        cedarpy.PolicySet.from_str(text)
    except ValueError as error:
        return str(error)
    return ""


def _is_template(text: str) -> bool:
    import cedarpy

    return bool(cedarpy.PolicySet.from_str(text).templates())


def _against_schema(policies: Sequence[Policy]) -> list[Problem]:
    import cedarpy

    result = cedarpy.validate_policies("\n".join(policy.text for policy in policies), schema_text())
    found: dict[Problem, None] = {}
    for error in result.errors:
        number = error.policy_id.removeprefix("policy")
        policy = policies[int(number)] if number.isdigit() else policies[0]
        said = _NUMBERED.sub("", error.error)
        # The two actions have the same context, so each fault in it is found twice.
        said = said.replace(' for Action::"ask"', "").replace(' for Action::"run"', "")
        if said.startswith(_FOLLOWS) and any(problem.file == policy.file for problem in found):
            continue
        what = f"The policy does not fit the schema: {said}."
        remedy = "`palyra policy show --schema` prints all that policies can speak about."
        found[policy.problem(what, remedy, offset=locate(policy.text, said, parse=_parse))] = None
    return list(found)
