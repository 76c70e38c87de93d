"""`time.now`: what time it is, here or elsewhere."""

import asyncio
import re
from datetime import UTC, datetime, tzinfo
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Meta

from palyra.core.errors import Invalid
from palyra.core.tool import Risk
from palyra.tools.base import ToolContext, tool

# A key becomes the path of a file, so nothing but the letters of zone names gets that far.
_ZONE = re.compile(r"[A-Za-z0-9_+\-]{1,32}(/[A-Za-z0-9_+\-]{1,32}){0,2}")


class UnknownZone(Invalid):
    """There is no such time zone. Use a name such as Europe/Berlin, America/New_York or UTC."""


@tool(name="time.now", risk=Risk.LOW, repeatable=True, read_only=True)
async def now(
    context: ToolContext, *, zone: Annotated[str, Meta(description="IANA zone; default: this machine's")] = ""
) -> str:
    """Tell date, weekday and time."""
    return await asyncio.to_thread(_tell, context.clock.now(), zone.strip())


def _tell(moment: datetime, zone: str) -> str:
    """Write the moment as the zone has it. Blocks: the zone's rules are read from disk."""
    local = moment.astimezone(_load(zone) if zone else None)
    offset = local.strftime("%z")
    name = zone or local.tzname() or "local time"
    return f"{local:%A, %Y-%m-%d %H:%M:%S} {name} (UTC{offset[:3]}:{offset[3:5]})"


def _load(zone: str) -> tzinfo:
    # Known even where the machine has no database of zones.
    if zone == "UTC":
        return UTC
    try:
        if not _ZONE.fullmatch(zone):
            raise UnknownZone
        return ZoneInfo(zone)
    # A folder of zones, or a file beside them that is none, gives one of the last two.
    except (ZoneInfoNotFoundError, OSError, ValueError):
        raise UnknownZone from None
