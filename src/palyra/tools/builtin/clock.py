"""`time.now`: the current time, here or in another time zone."""

import asyncio
import re
from datetime import UTC, datetime, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Meta

from palyra.core.errors import Invalid
from palyra.core.tool import Risk
from palyra.tools.base import ToolContext, tool

# A key becomes a file path, so only the letters of zone names are let through.
_ZONE = re.compile(r"[A-Za-z0-9_+\-]{1,32}(/[A-Za-z0-9_+\-]{1,32}){0,2}")


class TimeZoneNotFound(Invalid):
    """Unknown time zone. Use a name such as Europe/Berlin, America/New_York or UTC."""


@tool(name="time.now", risk=Risk.LOW, repeatable=True, read_only=True)
async def now(
    context: ToolContext, *, zone: Annotated[str, Meta(description="IANA zone; default: this machine's")] = ""
) -> str:
    """Tell date, weekday and time."""
    return await asyncio.to_thread(_time_text, context.clock.now(), zone.strip())


def _time_text(moment: datetime, zone: str) -> str:
    """Format the moment in the zone's time. Blocks: the zone's rules are read from disk."""
    local = moment.astimezone(_load(zone) if zone else None)
    offset = local.strftime("%z")
    name = zone or local.tzname() or "local time"
    return f"{local:%A, %Y-%m-%d %H:%M:%S} {name} (UTC{offset[:3]}:{offset[3:5]})"


def _load(zone: str) -> tzinfo:
    # Available even where the machine has no time zone database.
    if zone == "UTC":
        return UTC
    try:
        if not _ZONE.fullmatch(zone):
            raise TimeZoneNotFound
        return ZoneInfo(zone)
    # A folder of zones, or a file among them that is not a zone, raises one of the last two.
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise TimeZoneNotFound from None
