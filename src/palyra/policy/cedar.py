"""Cedar, the policy language and its engine: finds problems in policies, and evaluates requests.

The engine is imported by the daemon's warm-up or when it is first needed, not at start. Most of its memory, 7 of 9 MB,
is used from the first decision on.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from importlib import resources
from typing import TYPE_CHECKING

import msgspec

from palyra.policy.cedar_source import RENAMED_ATTRIBUTES, Policy, PolicyProblem, locate, old_names, too_deep
from palyra.policy.entities import CedarRequest

if TYPE_CHECKING:
    import cedarpy

RUN = "run"
ASK = "ask"

_KEPT_ENTITIES = 256
_MAX_DEPTH = 100
_ERRED = re.compile(r"`policy(\d+)`")
_NUMBERED = re.compile(r"(for policy )?`policy\d+`,? ?")
# Reported a second time for a policy whose scope names something that does not exist.
_FOLLOWS = "unable to find an applicable action"
_SEE = "docs/guides/policy.md shows how policies are written."


@dataclass(frozen=True, slots=True)
class CedarAnswer:
    """The decision of the policies about one action."""

    permitted: bool
    policies: tuple[str, ...]
    """The ids of the policies that determined it."""
    errors: tuple[str, ...] = ()
    """The errors; if there are any, the decision does not count."""
    erred: tuple[str, ...] = ()
    """The ids of the policies with errors."""


@cache
def schema_text() -> str:
    """Return the schema of the policies, as text."""
    return resources.files(__package__).joinpath("palyra.cedarschema").read_text("utf-8")


def find_problems(policies: Sequence[Policy]) -> list[PolicyProblem]:
    """Return every problem of the policies, in their syntax and against the schema."""
    policy_problems = [problem for policy in policies if (problem := _syntax(policy)) is not None]
    if policy_problems:
        # The schema can only check texts that parse.
        return policy_problems
    unknown = [f"attribute `{name}`" for name in RENAMED_ATTRIBUTES]
    others = (problem for problem in _against_schema(policies) if not any(name in problem.what for name in unknown))
    return [*old_names(policies), *others]


class CedarEngine:
    """Policies, ready for evaluation."""

    def __init__(self, policies: Sequence[Policy]) -> None:
        import cedarpy

        self._ids = [policy.id for policy in policies]
        self._ask = cedarpy.is_authorized_batch
        self._decisions = cedarpy.Decision
        self._policies = cedarpy.PolicySet.from_str("\n".join(policy.text for policy in policies))
        schema = cedarpy.Schema.from_str(schema_text())
        # The entities of earlier requests, cached. Several threads may decide at once.
        self._known = lru_cache(_KEPT_ENTITIES)(partial(cedarpy.Entities.from_json_str, schema=schema))

    def decide(self, request: CedarRequest) -> tuple[CedarAnswer, CedarAnswer]:
        """Return the decisions about running without approval, and about running with one."""
        try:
            context = msgspec.json.encode(request.context).decode()
            requests = [
                {
                    "principal": request.principal,
                    "action": _action(name),
                    "resource": request.resource,
                    "context": context,
                }
                for name in (RUN, ASK)
            ]
            # The context is our own and matches the schema, which a test proves. Checking it each time would double the
            # cost; and a mismatch makes policies fail, which denies.
            value = self._ask(requests, self._policies, self._known(request.entities))
        except ValueError as error:
            # Entities that the schema does not know, or text that is not valid Unicode.
            failed = CedarAnswer(False, (), (str(error),))
            return failed, failed
        run, ask = (self._answer(result) for result in value)
        return run, ask

    def _answer(self, result: "cedarpy.AuthzResult") -> CedarAnswer:
        diagnostics = result.diagnostics
        errors = tuple(diagnostics.errors)
        if result.decision is self._decisions.NoDecision and not errors:
            errors = ("the policy engine returned no decision",)
        reasons = sorted(int(name.removeprefix("policy")) for name in diagnostics.reasons)
        erred = [self._ids[int(number)] for error in errors for number in _ERRED.findall(error)[:1]]
        return CedarAnswer(result.allowed, tuple(self._ids[number] for number in reasons), errors, tuple(erred))


@cache
def _action(name: str) -> dict[str, str]:
    return {"type": "Action", "id": name}


def _syntax(policy: Policy) -> PolicyProblem | None:
    if (deep := too_deep(policy.text, maximum=_MAX_DEPTH)) is not None:
        # The engine does not reject it: it crashes the whole process.
        what = f"The policy cannot be parsed: it has more than {_MAX_DEPTH} nested brackets."
        return policy.problem(what, "Split it into several policies.", offset=deep)
    message = _parse(policy.text)
    if message:
        what = f"The policy cannot be parsed: {message}."
        return policy.problem(what, _SEE, offset=locate(policy.text, message, parse=_parse))
    if "?" in policy.text and _is_template(policy.text):
        return policy.problem("This is a template.", "Write the policy out: templates are not supported.")
    return None


def _parse(text: str) -> str:
    """Return the engine's error for a text that it cannot parse, or nothing."""
    import cedarpy

    try:
        cedarpy.PolicySet.from_str(text)
    except ValueError as error:
        return str(error)
    return ""


def _is_template(text: str) -> bool:
    import cedarpy

    return bool(cedarpy.PolicySet.from_str(text).templates())


def _against_schema(policies: Sequence[Policy]) -> list[PolicyProblem]:
    import cedarpy

    result = cedarpy.validate_policies("\n".join(policy.text for policy in policies), schema_text())
    values: dict[PolicyProblem, None] = {}
    for error in result.errors:
        number = error.policy_id.removeprefix("policy")
        policy = policies[int(number)] if number.isdigit() else policies[0]
        text = _NUMBERED.sub("", error.error)
        # The two actions have the same context, so each problem in it is found twice.
        text = text.replace(' for Action::"ask"', "").replace(' for Action::"run"', "")
        if text.startswith(_FOLLOWS) and any(problem.file == policy.file for problem in values):
            continue
        what = f"The policy does not match the schema: {text}."
        remedy = "`palyra policy show --schema` prints what policies can refer to."
        values[policy.problem(what, remedy, offset=locate(policy.text, text, parse=_parse))] = None
    return list(values)
