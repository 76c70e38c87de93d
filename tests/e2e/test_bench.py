"""The measurements run and print what programs read; how good the figures are is for a quiet machine to say."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from tests.bench import sandbox, search
from tests.bench.figures import Bar, Report, as_table, summarise
from tests.contract.providers.wire import wires
from tests.support.needs import GIT, POSTGRES, REPOSITORY, needs

BENCH = Path(__file__).parents[2] / "scripts" / "bench"
MACHINE = {"cores", "cpu", "memory_gib", "python", "kernel", "disk_fdatasync_per_s"}
FIGURES = {
    "overhead": {
        "http_p50_ms",
        "http_p95_ms",
        "http_32_turns_per_s",
        "grpc_p50_ms",
        "grpc_32_turns_per_s",
        "fdatasync_per_s",
    },
    "append": {"append_ratio", "append_100_rows_per_s", "raw_100_rows_per_s", "record_100_rows_per_s"},
    "stream": {"http_1_deltas_per_s", "grpc_8_deltas_per_s", "crowd_http_p95_ms", "crowd_grpc_p50_ms"},
    "start": {"ready_ms", "first_ready_ms", "idle_rss_mb", "used_rss_mb", "version_ms", "help_ms"},
    "stop": {"idle_ms", "busy_ms", "emergency_ms"},
    "growth": {"growth_1000", "growth_10000", "growth_sessions", "turn_10_cpu_ms", "turn_10_p50_ms"},
    "questions": {"tasks", "questions", "extra", "extra_per_task_max", "standing_extra_per_task_mean"},
    "provider": {
        "streams",
        "streams_s",
        "streams_chunks_per_s",
        "streams_mb",
        *(f"{wire.name}_{figure}" for wire in wires() for figure in ("us", "bare_us", "ratio")),
    },
    "policy": {"cold_ms", "engine_mb", "warm_us", "warm_100_us", "simulate_s"},
    "sandbox": {
        "bare_ms",
        "module_first_ms",
        "module_ms",
        "native_ms",
        "work_ratio",
        *(f"{tier}_{figure}" for tier in sandbox.available() for figure in ("ms", "ratio")),
    },
    "search": {
        f"{size}{name}_{figure}"
        for size in ("", "small_")
        for name in search.QUERIES
        for figure in ("walk_ms", *(("rg_ms", "ratio") if search.available() else ()))
    },
    "secrets": {
        "false_per_mb",
        "uv_lock_false",
        "git_hashes_false",
        "tests_false",
        "recall_tokens",
        "password_16_recall",
    },
    "soak": {"turns", "rss_slope_mb", "handles_slope"},
}


@pytest.mark.parametrize(
    "bench", [pytest.param(one, marks=needs(GIT, REPOSITORY) if one == "secrets" else ()) for one in FIGURES]
)
def test_a_measurement_prints_its_figures_as_one_object(bench: str) -> None:
    _check(bench)


@needs(POSTGRES)
def test_a_measurement_runs_on_postgres() -> None:
    _check("append", "--engine", "postgres")


def test_a_person_sees_each_bar_beside_its_figure() -> None:
    figures = summarise([{"turn_ms": 3.0, "rate": 90.0}, {"turn_ms": 5.0, "rate": 90.0}])
    table = as_table(Report("some", "sqlite", figures, {}), {"turn_ms": Bar(4), "rate": Bar(100, most=False)})
    lines = {line.split()[0]: line for line in table.splitlines()}
    assert lines["turn_ms"].split() == ["turn_ms", "4", "50%", "<=", "4", "met"]
    assert lines["rate"].split() == ["rate", "90", "0%", ">=", "100", "MISSED"]


def _check(bench: str, *options: str) -> None:
    done = subprocess.run([BENCH, bench, "--quick", "--json", *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report) == {"bench", "figures", "machine"}
    assert report["bench"] == bench
    assert set(report["machine"]) >= MACHINE
    figures = report["figures"]
    assert set(figures) >= FIGURES[bench] | {f"{name}_spread" for name in FIGURES[bench]}
    assert all(math.isfinite(figure) for figure in figures.values())
