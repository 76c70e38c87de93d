"""What a measurement came to: medians, how far the rounds lie apart, and whether the bars are met."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure should reach."""

    limit: float
    most: bool = True
    """The figure may be this high at the most; else it must be so high at the least."""

    def met(self, figure: float) -> bool:
        """Tell whether the figure is good enough."""
        return figure <= self.limit if self.most else figure >= self.limit

    def __str__(self) -> str:
        return f"{'<=' if self.most else '>='} {_number(self.limit)}"


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of one measurement, and the machine that they hold for."""

    bench: str
    engine: str
    figures: Figures
    machine: Mapping[str, object]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which that share of the values lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summarise(rounds: Sequence[Figures]) -> Figures:
    """Return the median of every figure, and its spread: (highest - lowest) / median."""
    found: Figures = {}
    for name in rounds[0]:
        values = [figures[name] for figures in rounds]
        middle = median(values)
        found[name] = round(middle, 4)
        found[f"{name}_spread"] = round((max(values) - min(values)) / abs(middle), 4) if middle else 0.0
    return found


def as_json(report: Report) -> str:
    """Return the report for a program."""
    return json.dumps({"bench": report.bench, "figures": report.figures, "machine": report.machine})


def as_table(report: Report, bars: Mapping[str, Bar]) -> str:
    """Return the report for a person: each figure with its bar, and whether it is met."""
    names = [name for name in report.figures if not name.endswith("_spread")]
    width = max(len(name) for name in names)
    lines = [
        f"{report.bench} on {report.engine}: " + ", ".join(f"{key} {value}" for key, value in report.machine.items()),
        f"{'figure':<{width}}  {'median':>12}  {'spread':>7}  bar",
    ]
    for name in names:
        figure, spread, bar = report.figures[name], report.figures[f"{name}_spread"], bars.get(name)
        verdict = "" if bar is None else f"{bar}  {'met' if bar.met(figure) else 'MISSED'}"
        lines.append(f"{name:<{width}}  {_number(figure):>12}  {spread:>6.0%}  {verdict}".rstrip())
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.4g}"
