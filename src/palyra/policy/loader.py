"""Loads the policies of a home: the shipped ones, and the user's own files, which override them.

A user policy with the id of a shipped one replaces it. Everything is checked against the schema before any of it is
used, and every problem is reported with file, line and column.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path

from palyra.core.errors import Invalid
from palyra.home import Home
from palyra.policy import cedar
from palyra.policy.cedar_source import Policy, PolicyProblem, split

SHIPPED = "default.cedar"
"""The file name that is shown for a shipped policy."""


class PolicyInvalid(Invalid):
    """A policy file is not valid. `palyra policy check` lists all problems."""

    def __init__(self, problems: Sequence[PolicyProblem]) -> None:
        self.problems = tuple(problems)
        more = f" Further problems: {len(problems) - 1}. `palyra policy check` lists all of them."
        super().__init__(f"{problems[0]}{more if len(problems) > 1 else ''}")


@dataclass(frozen=True, slots=True)
class Policies:
    """A set of policies, ordered by their ids."""

    items: tuple[Policy, ...]
    hash: str
    """Covers everything that affects decisions: the texts of the policies, and the schema."""


@cache
def shipped() -> tuple[Policy, ...]:
    """Return the policies that are part of Palyra."""
    return tuple(split(resources.files(__package__).joinpath(SHIPPED).read_text("utf-8"), SHIPPED))


def user_files(home: Home) -> tuple[Path, ...]:
    """Return the user's policy files, by name; raise `PolicyInvalid` if they cannot be listed."""
    try:
        names = sorted(os.listdir(home.policy))
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        text = f"The folder cannot be read: {error.strerror}."
        raise PolicyInvalid([PolicyProblem(str(home.policy), 1, 1, text, "Make it readable.")]) from error
    paths = (home.policy / name for name in names if name.endswith(".cedar"))
    return tuple(path for path in paths if not os.path.isdir(path))


def load(home: Home) -> Policies:
    """Return the policies of a home, checked; raise `PolicyInvalid` if anything is invalid."""
    return load_files(user_files(home))


def load_files(paths: Iterable[Path]) -> Policies:
    """Return the shipped policies, overridden by those of some files."""
    own, problems = examine(paths)
    if problems:
        raise PolicyInvalid(problems)
    return combine(own)


def load_texts(files: Iterable[tuple[str, str]]) -> Policies:
    """Return the shipped policies, overridden by those of some files, each given by its name and its text."""
    own = [policy for name, text in files for policy in split(text, name)]
    if problems := (cedar.find_problems(own) if own else []) or _without_id(own):
        raise PolicyInvalid(problems)
    return combine(own)


def examine(paths: Iterable[Path]) -> tuple[list[Policy], list[PolicyProblem]]:
    """Read policy files and find every problem in them."""
    policies: list[Policy] = []
    problems: list[PolicyProblem] = []
    for path in paths:
        try:
            policies += split(path.read_text("utf-8"), str(path))
        except UnicodeDecodeError as error:
            line = error.object[: error.start].count(b"\n") + 1
            problems.append(PolicyProblem(str(path), line, 1, "The file is not text.", "Save the file as UTF-8."))
        except OSError as error:
            problems.append(
                PolicyProblem(str(path), 1, 1, f"The file cannot be read: {error.strerror}.", "Make it readable.")
            )
    if policies:
        problems += cedar.find_problems(policies)
    if not problems:
        problems += _without_id(policies)
    return policies, problems


def combine(own: Iterable[Policy]) -> Policies:
    """Combine policies with the shipped ones."""
    effective = {policy.id: policy for policy in (*shipped(), *own)}
    items = tuple(effective[name] for name in sorted(effective))
    decides = [cedar.schema_text(), *(policy.text for policy in items)]
    return Policies(items, hashlib.sha256(json.dumps(decides).encode()).hexdigest()[:16])


def _without_id(policies: Iterable[Policy]) -> list[PolicyProblem]:
    """Find policies that cannot be identified."""
    policy_problems: list[PolicyProblem] = []
    first: dict[str, Policy] = {}
    for policy in policies:
        if not policy.id:
            what, remedy = "The policy has no name.", 'Write @id("some-name") before it.'
            policy_problems.append(policy.problem(what, remedy))
        elif policy.id in first:
            other = first[policy.id]
            what = f"The policy {policy.id!r} already exists, at {other.file}:{other.line}:{other.column}."
            policy_problems.append(policy.problem(what, "Give one of them another @id."))
        first.setdefault(policy.id, policy)
    return policy_problems
