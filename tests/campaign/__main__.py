"""The command behind `scripts/campaign`: runs a campaign, prints a table, and fails if something did not hold."""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from random import Random
from time import monotonic

from tests.campaign import trials
from tests.campaign.driver import Episode, Tally
from tests.campaign.effects import counting
from tests.support import daemon as daemons
from tests.support.postgres import PostgresServer, own_postgres

MAX_KILLS_PER_EPISODE = 30
MIN_EPISODES = 4
KILLS_PER_TRIAL = 6
COUNTED_EVERY = 4
"""Every so many episodes have an MCP server outside, whose tools take a while to be there after each start."""
START_SECONDS = 60.0


def main() -> None:
    """Run what the arguments name."""
    asked = _arguments()
    # The environment of the caller must not change what is tried.
    for name in [name for name in os.environ if name.startswith("PALYRA_")]:
        del os.environ[name]
    daemons.START_SECONDS = START_SECONDS
    tally, began = Tally(), monotonic()
    print(f"{asked.kills} kills, seed {asked.seed}, engines: {' '.join(asked.engines)}", flush=True)
    place = Path(tempfile.mkdtemp(prefix="palyra-campaign-", dir=asked.folder))
    with ExitStack() as stack:
        server = stack.enter_context(own_postgres()) if "postgres" in asked.engines else None
        number = 0
        while tally.killed < asked.kills:
            engine = asked.engines[number % len(asked.engines)]
            _episode(place, tally, asked, number, server=server if engine == "postgres" else None)
            number += 1
            passed = monotonic() - began
            print(
                f"{tally.killed:5} kills, {tally.facts['messages accepted']:6} messages,"
                f" violations: {len(tally.violations)}, {passed:.0f} s",
                flush=True,
            )
            if len(tally.violations) >= asked.stop_after:
                break
    _print(tally, monotonic() - began)
    if not tally.violations:
        place.rmdir()
        return
    print(f"FAILED: {len(tally.violations)} violations; what the daemons left is kept in {place}.")
    sys.exit(1)


def _episode(
    place: Path, tally: Tally, asked: argparse.Namespace, number: int, *, server: PostgresServer | None
) -> None:
    chance = Random(f"{asked.seed} {number}")
    folder = place / f"episode-{number}"
    folder.mkdir()
    before = len(tally.violations)
    with ExitStack() as stack:
        counts = number % COUNTED_EVERY >= COUNTED_EVERY - len(asked.engines)
        counted = stack.enter_context(counting(Random(chance.random()))) if counts else None
        episode = Episode(folder, chance, tally, server=server, counted=counted)
        kills = min(MAX_KILLS_PER_EPISODE, max(1, asked.kills // MIN_EPISODES), asked.kills - tally.killed)
        try:
            episode.run(trials.chosen(chance, max(1, kills // KILLS_PER_TRIAL)), kills=kills)
        except Exception as error:
            episode.violation(f"the campaign could not go on: {type(error).__name__}: {error}")
            episode.daemon.close()
        if len(tally.violations) == before:
            episode.discard()


def _print(tally: Tally, seconds: float) -> None:
    rows: list[tuple[str, object]] = [(f"kills during {phase}", times) for phase, times in tally.kills.most_common()]
    rows += [("kills in all", tally.killed), *tally.facts.items()]
    rows += [(kind.replace("_", " "), times) for kind, times in tally.runs.most_common()]
    rows += [(f"calls that ended {outcome}", times) for outcome, times in tally.outcomes.most_common()]
    rows += [("files left behind", sum(tally.leftovers.values()))]
    rows += [("violations", len(tally.violations)), ("duration", f"{seconds:.0f} s")]
    for name, value in rows:
        print(f"{name:45} {value:>8}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/campaign", description="Try daemons of its own under faults.")
    parser.add_argument("campaign", choices=["crash"], help="crash: kill the daemon at random instants")
    parser.add_argument("--kills", type=int, default=50, help="how often to kill (default: 50)")
    parser.add_argument("--seed", type=int, default=1, help="repeats the choices of a campaign (default: 1)")
    parser.add_argument("--engine", choices=["sqlite", "postgres"], help="one engine only (default: both in turn)")
    parser.add_argument("--folder", type=Path, help="where homes are made (default: a temporary folder)")
    parser.add_argument("--stop-after", type=int, default=20, help="stop after so many violations (default: 20)")
    asked = parser.parse_args()
    asked.engines = [asked.engine] if asked.engine else ["sqlite", "postgres"]
    return asked


if __name__ == "__main__":
    main()
