"""The time zones of places that people ask about."""

import re

ZONES = {
    "Africa/Cairo": "cairo egypt",
    "Africa/Johannesburg": "johannesburg cape_town south_africa",
    "Africa/Lagos": "lagos nigeria",
    "Africa/Nairobi": "nairobi kenya",
    "America/Argentina/Buenos_Aires": "buenos_aires argentina",
    "America/Bogota": "bogota bogotá colombia",
    "America/Chicago": "chicago dallas houston austin texas",
    "America/Denver": "denver colorado",
    "America/Lima": "lima peru",
    "America/Los_Angeles": "los_angeles la san_francisco sf seattle california portland san_diego las_vegas",
    "America/Mexico_City": "mexico_city",
    "America/New_York": "new_york new_york_city nyc boston miami washington washington_dc philadelphia atlanta",
    "America/Phoenix": "phoenix arizona",
    "America/Santiago": "santiago chile",
    "America/Sao_Paulo": "sao_paulo são_paulo rio rio_de_janeiro",
    "America/Toronto": "toronto ottawa montreal montréal",
    "America/Vancouver": "vancouver",
    "Asia/Bangkok": "bangkok thailand",
    "Asia/Dhaka": "dhaka bangladesh",
    "Asia/Dubai": "dubai abu_dhabi uae united_arab_emirates",
    "Asia/Ho_Chi_Minh": "ho_chi_minh_city saigon hanoi vietnam",
    "Asia/Hong_Kong": "hong_kong",
    "Asia/Jakarta": "jakarta",
    "Asia/Jerusalem": "jerusalem tel_aviv israel",
    "Asia/Karachi": "karachi pakistan",
    "Asia/Kathmandu": "kathmandu nepal",
    "Asia/Kolkata": "india delhi new_delhi mumbai bangalore bengaluru kolkata chennai",
    "Asia/Manila": "manila philippines",
    "Asia/Riyadh": "riyadh saudi_arabia",
    "Asia/Seoul": "seoul korea south_korea",
    "Asia/Shanghai": "china beijing shanghai shenzhen",
    "Asia/Singapore": "singapore",
    "Asia/Taipei": "taipei taiwan",
    "Asia/Tehran": "tehran iran",
    "Asia/Tokyo": "tokyo osaka kyoto japan",
    "Atlantic/Reykjavik": "reykjavik iceland",
    "Australia/Brisbane": "brisbane",
    "Australia/Melbourne": "melbourne",
    "Australia/Perth": "perth",
    "Australia/Sydney": "sydney canberra",
    "Europe/Amsterdam": "amsterdam netherlands",
    "Europe/Athens": "athens greece",
    "Europe/Berlin": "berlin munich hamburg frankfurt cologne germany",
    "Europe/Brussels": "brussels belgium",
    "Europe/Bucharest": "bucharest romania",
    "Europe/Budapest": "budapest hungary",
    "Europe/Copenhagen": "copenhagen denmark",
    "Europe/Dublin": "dublin ireland",
    "Europe/Helsinki": "helsinki finland",
    "Europe/Istanbul": "istanbul ankara turkey türkiye",
    "Europe/Kyiv": "kyiv kiev ukraine",
    "Europe/Lisbon": "lisbon porto portugal",
    "Europe/London": "london uk united_kingdom england britain scotland edinburgh manchester",
    "Europe/Madrid": "madrid barcelona spain",
    "Europe/Moscow": "moscow",
    "Europe/Oslo": "oslo norway",
    "Europe/Paris": "paris lyon france",
    "Europe/Prague": "prague czechia czech_republic",
    "Europe/Rome": "rome milan italy",
    "Europe/Sofia": "sofia bulgaria",
    "Europe/Stockholm": "stockholm sweden",
    "Europe/Vienna": "vienna austria",
    "Europe/Warsaw": "warsaw krakow poland",
    "Europe/Zurich": "zurich zürich geneva bern switzerland",
    "Pacific/Auckland": "auckland wellington new_zealand",
    "Pacific/Honolulu": "honolulu hawaii",
    "UTC": "utc gmt greenwich zulu",
}
_PLACES = {place.replace("_", " "): zone for zone, places in ZONES.items() for place in places.split()}
_AREAS = "Africa|America|Antarctica|Arctic|Asia|Atlantic|Australia|Europe|Indian|Pacific"
_NAME = re.compile(rf"(?:{_AREAS})(?:/[A-Za-z0-9_+\-]{{1,32}}){{1,2}}", re.IGNORECASE)


def zone_of(place: str) -> str | None:
    """Return the zone of a place, or of a zone's own name in any case; None if it is unknown."""
    if _NAME.fullmatch(place):
        return "/".join("_".join(word.capitalize() for word in part.split("_")) for part in place.split("/"))
    words = " ".join(place.lower().replace(".", "").split()).removeprefix("the ").removesuffix(" time")
    return _PLACES.get(words) or _PLACES.get(words.partition(",")[0].strip())
