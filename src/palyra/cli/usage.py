"""`palyra usage`: what models were used for and what it cost, the status of budgets, and the prices in force."""

from datetime import UTC, date, datetime, timedelta
from typing import Any

import click

from palyra.cli.options import Invocation, PalyraGroup
from palyra.cli.short_ids import is_id_suffix
from palyra.cli.terminal.output import date_time, facts, plural, say, screen_width, show, show_json, table
from palyra.cli.terminal.printable import printable_line
from palyra.core.spending.price import format_money
from palyra.core.spending.usage_report import (
    BudgetCap,
    BudgetStatus,
    UsageCauses,
    UsageGrouping,
    UsageReport,
    UsageTotal,
)
from palyra.core.token import TokenScopeMissing
from palyra.gateway.client.errors import RemoteError

BAR = 20
BAR_PLACE = 3
WIDE = 110
"""How many columns a terminal needs to show budgets with their bars."""
SPANS = {"h": "hours", "d": "days", "w": "weeks"}
CAUSES = {
    "grpc": "the command line",
    "http": "programs, over HTTP",
    "v1": "programs, over /v1",
    "test": "model tests",
    "run": "child runs",
    "reissue": "reissued approval requests",
    "api": "messages",
    "embeddings": "embeddings",
}
STEPS = {
    "input": "a message",
    "results": "tool results",
    "retry": "retry",
    "last": "final answer at a limit",
    "texts": "texts to embed",
}


class Since(click.ParamType[str]):
    """A date, a time, or how long ago: 12h, 7d, 4w."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip()
        if text[-1:] in SPANS and text[:-1].isdigit() and len(text) <= 6:
            from palyra.daemon.process.system_clock import SystemClock

            ago = timedelta(**{SPANS[text[-1]]: int(text[:-1])})
            return f"{SystemClock().now() - ago:%Y-%m-%dT%H:%M:%SZ}"
        try:
            if len(text) == len("2026-11-15"):
                return date.fromisoformat(text).isoformat()
            return datetime.fromisoformat(text).astimezone(UTC).isoformat()
        except (ValueError, OverflowError):
            self.fail(f"{text!r} is not a date, time or duration: use 2026-11-15, 12h, 7d or 4w.", param, ctx)


SINCE = click.option(
    "--since", type=Since(), metavar="WHEN", help="Only usage since a date or duration: 2026-11-15, 12h, 7d, 4w."
)
ALL = click.option("--all", "everybody", is_flag=True, help="Include all principals; needs an admin token.")


@click.group(cls=PalyraGroup, invoke_without_command=True)
@click.option(
    "--by",
    type=click.Choice([by.value for by in UsageGrouping]),
    default=UsageGrouping.MODEL.value,
    show_default=True,
    help="Group by; principal needs --all.",
)
@SINCE
@ALL
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1, 500), help="Maximum number of rows.")
@click.pass_context
def usage(ctx: click.Context, *, by: UsageGrouping, since: str | None, everybody: bool, limit: int) -> None:
    """Show model usage, costs and budgets.

    Covers the current month, or the last thirty days with `--by day`. Days and months are in UTC.
    """
    if ctx.invoked_subcommand is not None:
        return
    invocation = ctx.ensure_object(Invocation)
    if UsageGrouping(by) is UsageGrouping.PRINCIPAL and not everybody:
        raise click.UsageError("--by principal needs --all.")
    usage_report = invocation.client.usage.report(
        by=UsageGrouping(by), since=since or None, limit=limit, everyone=everybody
    )
    budgets = usage_report.budgets if everybody else _budgets(invocation, usage_report)
    if invocation.json:
        import msgspec

        show_json(msgspec.structs.replace(usage_report, budgets=budgets))
        return
    _show_rows(usage_report)
    if budgets:
        print()
        show(_budget_lines(budgets))


@usage.command("causes")
@click.argument("run", required=False)
@SINCE
@ALL
def causes(invocation: Invocation, run: str | None, *, since: str | None, everybody: bool) -> None:
    """Show what caused model turns, and their cost. With RUN, lists each turn of that run.

    RUN is a run's id, its last six characters, or `last` for the most recent run.
    """
    if run is not None and since is not None:
        raise click.UsageError("RUN and --since cannot be used together.")
    run_id = run
    if run is not None:
        from palyra.cli.runs import find_run

        named = run == "last" or is_id_suffix(run)
        run_id = find_run(invocation.client, run).run_id if named else run
    usage_causes = invocation.client.usage.causes(run_id=run_id, since=since or None, everyone=everybody)
    if invocation.json:
        show_json(usage_causes)
    elif not usage_causes.causes:
        print("No model was called.")
    else:
        rows = [
            [
                CAUSES.get(one.cause, one.cause),
                STEPS.get(one.step, one.step),
                *_cells(one.used, usage_causes.currency),
            ]
            for one in usage_causes.causes
        ]
        show(table(["SOURCE", "CAUSE", *HEADS], rows, stretch=0))
        if usage_causes.turns:
            print()
            show(_turns(usage_causes))
        _print_remainder(usage_causes.total)


@usage.command("prices")
@click.argument("model", required=False)
def prices(invocation: Invocation, model: str | None) -> None:
    """List the current prices per million tokens. With MODEL (PROVIDER/MODEL), show its price.

    The file prices.toml in the home folder adds prices, or replaces the built-in ones.
    """
    from palyra.providers.prices import CurrentPrices

    settings = invocation.settings
    current_prices = CurrentPrices(invocation.home, lambda: settings)
    if model is not None:
        price, named = current_prices.price(model), current_prices.now.of(model)
        if invocation.json:
            show_json({"model": model, "price": price, "named": named.name if named else None})
        elif price is None:
            print(f"{printable_line(model)} has no price. Add one to {invocation.home.prices}:")
            print(f'\n    [models."{printable_line(model)}"]\n    input = 0.00\n    output = 0.00')
        else:
            where = f"{named.file}, as {named.name}" if named is not None else "runs on this machine"
            show(
                facts(
                    ("input", f"{price.input}"),
                    ("output", f"{price.output}"),
                    ("cached", _text_of(price.cached)),
                    ("cache write", _text_of(price.cache_write)),
                    ("source", price.source),
                    ("date", price.date),
                    ("from", where),
                )
            )
        return
    items = current_prices.now.items
    if invocation.json:
        listed = [{"name": one.name, "price": one.price, "file": one.file} for one in items]
        show_json({"currency": current_prices.now.currency, "file": str(invocation.home.prices), "prices": listed})
        return
    rows = [
        [
            one.name,
            str(one.price.input),
            _text_of(one.price.cached),
            _text_of(one.price.cache_write),
            str(one.price.output),
            one.price.date,
            one.price.source or one.file,
        ]
        for one in sorted(items, key=lambda one: one.name)
    ]
    show(table([current_prices.now.currency, "INPUT", "CACHED", "CACHE WRITE", "OUTPUT", "DATE", "SOURCE"], rows))
    say(f"Per million tokens. Add prices in {invocation.home.prices}.")


HEADS = ("TURNS", "IN", "CACHED", "OUT", "COST")


def _budgets(invocation: Invocation, usage_report: UsageReport) -> tuple[BudgetStatus, ...]:
    """Return the budgets, including those for everyone if the token may see them."""
    try:
        every = invocation.client.usage.report(limit=1, everyone=True).budgets
    except RemoteError as error:
        if error.code != TokenScopeMissing.code:
            raise
        return usage_report.budgets
    # The caller's own have names that an operator does not see.
    own = {(one.budget, one.subject_id, one.period): one for one in usage_report.budgets}
    return tuple(own.get((one.budget, one.subject_id, one.period), one) for one in every)


def _show_rows(usage_report: UsageReport) -> None:
    if not usage_report.rows:
        print(f"No model was called since {date_time(usage_report.since)}.")
        return
    rows = [
        [printable_line(row.label or row.name, width=60), *_cells(row.used, usage_report.currency)]
        for row in usage_report.rows
    ]
    total = _cells(usage_report.total, usage_report.currency)
    show(table([usage_report.by.value.upper(), *HEADS], [*rows, ["total", *total]], stretch=0))
    say(f"Since {date_time(usage_report.since)}.")
    _print_remainder(usage_report.total)


def _cells(used: UsageTotal, currency: str) -> list[str]:
    cost = format_money(used.micros, currency)
    if used.unpriced:
        cost = "no price" if not used.micros else f"{cost} and more"
    return [
        str(used.turns),
        f"{used.input_tokens:,}",
        f"{used.cached_tokens:,}" if used.cached_tokens else "",
        f"{used.output_tokens:,}",
        cost,
    ]


def _print_remainder(used: UsageTotal) -> None:
    """Print what a sum does not show."""
    if used.unpriced:
        say(f"{plural(used.unpriced, 'turn')} without a price. See how to set one with `palyra usage prices MODEL`.")
    if used.estimated:
        say(f"{used.estimated} of {plural(used.turns, 'turn')} estimated (the provider reported no usage).")
    if used.discarded:
        say(f"{plural(used.discarded, 'failed turn')}.")
    if used.reserved_tokens:
        say(f"{used.reserved_tokens:,} tokens reserved for active turns.")


def _budget_lines(budgets: tuple[BudgetStatus, ...]) -> list[str]:
    rows = []
    for one in budgets:
        subject = " ".join(filter(None, (one.subject.value, one.label or one.subject_id)))
        if one.resets_at is None:
            subject += f", run {one.period}"
        for cap in one.caps:
            resets = f"{one.resets_at:%Y-%m-%d %H:%M} UTC" if one.resets_at is not None else ""
            rows.append(
                [one.budget, subject, f"per {one.per.value}", _bar(cap), _used_of(cap), one.action.value, resets]
            )
    heads = ["BUDGET", "OF", "PER", "", "USED", "ACTION", "RESETS"]
    if screen_width() < WIDE:
        # The bar shows nothing that the figures do not.
        heads.pop(BAR_PLACE)
        rows = [[*row[:BAR_PLACE], *row[BAR_PLACE + 1 :]] for row in rows]
    return table(heads, rows, stretch=1)


def _bar(cap: BudgetCap) -> str:
    used = BAR if not cap.cap else min(BAR, round(BAR * cap.settled / cap.cap))
    held = 0 if not cap.cap else min(BAR - used, -(-BAR * cap.reserved // cap.cap))
    return "█" * used + "▒" * held + "·" * (BAR - used - held)


def _used_of(cap: BudgetCap) -> str:
    def amount(count: int) -> str:
        return f"{count:,} tokens" if cap.unit == "tokens" else format_money(count, cap.unit)

    held = f" ({amount(cap.reserved)} reserved)" if cap.reserved else ""
    settled = f"{cap.settled:,}" if cap.unit == "tokens" else amount(cap.settled)
    return f"{settled} of {amount(cap.cap)}{held}"


def _turns(usage_causes: UsageCauses) -> list[str]:
    rows = [
        [
            one.run_id if one.run_id != usage_causes.run_id else "",
            str(one.turn),
            one.model,
            STEPS.get(one.step, one.step),
            one.state if one.state != "settled" else "",
            f"{one.used.input_tokens:,}",
            f"{one.used.output_tokens:,}",
            format_money(one.used.micros, usage_causes.currency) if not one.used.unpriced else "no price",
        ]
        for one in usage_causes.turns
    ]
    return table(["RUN", "TURN", "MODEL", "CAUSE", "", "IN", "OUT", "COST"], rows, stretch=2)


def _text_of(amount: object) -> str:
    return "" if amount is None else str(amount)
