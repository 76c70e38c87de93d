"""Numbers with their nouns."""


def plural(number: int, noun: str) -> str:
    """Return a number and its noun."""
    if number == 1:
        return f"{number} {noun}"
    # "entry", but not "day".
    ends_in_y = noun.endswith("y") and noun[-2] not in "aeiou"
    return f"{number} {noun[:-1]}ies" if ends_in_y else f"{number} {noun}s"
