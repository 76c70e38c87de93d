"""Places have zones, and all the zones exist."""

from zoneinfo import ZoneInfo

import pytest

from palyra.providers.embedded.time_zones import ZONES, zone_of


@pytest.mark.parametrize(
    ("place", "zone"),
    [
        ("Tokyo", "Asia/Tokyo"),
        ("new york", "America/New_York"),
        ("Washington D.C.", "America/New_York"),
        ("Paris, France", "Europe/Paris"),
        ("the UK", "Europe/London"),
        ("europe/berlin", "Europe/Berlin"),
        ("America/Argentina/Buenos_Aires", "America/Argentina/Buenos_Aires"),
        ("UTC", "UTC"),
    ],
)
def test_a_place_has_its_zone(place: str, zone: str) -> None:
    assert zone_of(place) == zone


@pytest.mark.parametrize("place", ["Atlantis", "", "../../etc/passwd", "Europe/../../etc/passwd", "Europe/"])
def test_what_is_no_known_place_has_none(place: str) -> None:
    assert zone_of(place) is None


@pytest.mark.parametrize("zone", ZONES)
def test_every_zone_exists(zone: str) -> None:
    assert ZoneInfo(zone).key == zone
