"""The command behind `scripts/attack`: runs the cases, prints how each ended, and fails if one attack worked."""

import argparse
import os
import sys
import tempfile
import traceback
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic

from tests.attack.case import Case, Unsupported, all_cases
from tests.attack.ground import Ground
from tests.support.needs import summary


def main() -> None:
    """Run what the arguments name."""
    cases = all_cases()
    asked = _arguments(sorted({case.area for case in cases}))
    # The environment of the caller must not change what is attacked.
    for name in [name for name in os.environ if name.startswith("PALYRA_")]:
        del os.environ[name]
    chosen = [case for case in cases if not asked.cases or asked.cases & {case.area, case.name}]
    if not chosen:
        sys.exit(f"scripts/attack: no case is called {' or '.join(sorted(asked.cases))}; --list shows all of them")
    if asked.list:
        print(*(f"{case.name:46} {case.title}" for case in chosen), sep="\n")
        return
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    print(f"{len(chosen)} cases, rounds {asked.rounds}, seed {asked.seed}, as {who}", flush=True)
    skipped: list[str] = []
    outcomes = [_run(case, skipped, rounds=asked.rounds, seed=asked.seed) for case in chosen]
    held = outcomes.count("held")
    failed = len(outcomes) - held - len(skipped)
    print(f"{held} passed, {failed} failed, {len(skipped)} skipped")
    if skipped:
        print(summary(skipped, what="case"))
    sys.exit(1 if failed else 0)


def _run(case: Case, skipped: list[str], *, rounds: int, seed: int) -> str:
    began = monotonic()
    said = ""
    with (
        tempfile.TemporaryDirectory(prefix="palyra-attack-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        ground = Ground(Path(folder), stack, rounds=rounds, random=Random(f"{seed} {case.name}"))
        try:
            case.run(ground)
            outcome = "held"
        except Unsupported as reason:
            skipped.append(str(reason))
            outcome, said = "skipped", f" ({reason})"
        except AssertionError:
            outcome, said = "BROKEN", f"\n{traceback.format_exc()}"
        except Exception:
            # The case itself went wrong, so it says nothing about Palyra.
            outcome, said = "ERROR", f"\n{traceback.format_exc()}"
    print(f"{outcome:8} {case.name:46} {case.title}, {monotonic() - began:.1f} s{said}", flush=True)
    return outcome


def _arguments(areas: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/attack", description="Attack daemons of its own on this machine.")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"areas or cases; areas: {', '.join(areas)}")
    parser.add_argument("--rounds", type=int, default=1, help="variants and repetitions of each case (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="repeats a campaign (default: 1)")
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    asked = parser.parse_args()
    asked.cases = set(asked.cases)
    return asked


if __name__ == "__main__":
    main()
