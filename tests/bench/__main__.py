"""The command behind `scripts/bench`: measures one thing, and prints its figures beside their bars."""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack

from tests.bench import (
    append,
    growth,
    overhead,
    policy,
    provider,
    questions,
    sandbox,
    search,
    secrets,
    soak,
    start,
    stop,
    stream,
)
from tests.bench.figures import Report, as_json, as_table, summarise
from tests.bench.ground import Ground, Measurement, durable_postgres
from tests.bench.machine import describe, disk_folder

MEASUREMENTS: dict[str, Measurement] = {
    "overhead": overhead.MEASUREMENT,
    "append": append.MEASUREMENT,
    "stream": stream.MEASUREMENT,
    "start": start.MEASUREMENT,
    "stop": stop.MEASUREMENT,
    "growth": growth.MEASUREMENT,
    "policy": policy.MEASUREMENT,
    "provider": provider.MEASUREMENT,
    "questions": questions.MEASUREMENT,
    "sandbox": sandbox.MEASUREMENT,
    "search": search.MEASUREMENT,
    "secrets": secrets.MEASUREMENT,
    "soak": soak.MEASUREMENT,
}


def main() -> None:
    """Measure what the arguments name."""
    asked = _arguments()
    # The environment of whoever measures must not change what is measured.
    for name in [name for name in os.environ if name.startswith("PALYRA_") or name == "PYTHONDONTWRITEBYTECODE"]:
        del os.environ[name]
    measurement = MEASUREMENTS[asked.bench]
    with ExitStack() as stack:
        # Everything temporary, PostgreSQL's files included, goes to a disk: in memory a commit would cost nothing.
        tempfile.tempdir = str(disk_folder(stack))
        machine = describe()
        ground = Ground(
            engine=asked.engine,
            quick=asked.quick,
            repeat=asked.repeat or (1 if asked.quick else measurement.repeat),
            turns=asked.turns,
            server=stack.enter_context(durable_postgres()) if asked.engine == "postgres" else None,
        )
        rounds = []
        for number, figures in enumerate(measurement.rounds(ground), start=1):
            print(f"{asked.bench}: round {number} of {ground.repeat}", file=sys.stderr, flush=True)
            rounds.append(figures)
        report = Report(asked.bench, asked.engine, summarise(rounds), machine)
    print(as_json(report) if asked.json else as_table(report, measurement.bars))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/bench", description="Measure a daemon of its own on this machine.")
    kinds = parser.add_subparsers(dest="bench", required=True, metavar="SUBCOMMAND")
    for name, measurement in MEASUREMENTS.items():
        kind = kinds.add_parser(name, help=measurement.about, description=measurement.about)
        kind.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        kind.add_argument("--engine", choices=("sqlite", "postgres"), default="sqlite", help="where the journal is")
        kind.add_argument("--repeat", type=int, help=f"rounds to measure; {measurement.repeat} unless told, 1 if quick")
        kind.add_argument("--quick", action="store_true", help="small numbers: shows that it works, measures little")
        kind.add_argument("--turns", type=int, help="how long a soak is; 100,000 turns unless told")
    return parser.parse_args()


if __name__ == "__main__":
    main()
