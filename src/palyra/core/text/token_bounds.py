"""An upper bound for the tokens of a text, whatever the tokenizer.

What a budget reserves must not be less than what is counted later, and which tokenizer counts is not known here. So
each kind of character has its own weight, from the worst of the tokenizers in use: digits are often tokens by
themselves, letters between them too, and a character beyond ASCII is up to one token for each of its bytes. The weights
were checked against the tokenizers of OpenAI, Anthropic, Qwen, Mistral and SmolLM2 (decision 0040).
"""

SLICE = 1024
"""How many bytes are judged together: a key within a long text must not count as one of its words."""
LONG_WORD = 8
"""More letters than this without a break are hardly a word."""


def _kinds() -> bytes:
    """Return the kind of each byte; continuation bytes have one that is not counted."""
    kinds = bytearray(b"." * 0x80 + b"_" * 0x40 + b"2" * 0x40)
    ranges = {
        b"a": [(0x61, 0x7A)],
        b"A": [(0x41, 0x5A)],
        b"0": [(0x30, 0x39)],
        b" ": [(0x20, 0x20)],
        b"l": [(0xC3, 0xCB)],  # Latin letters with marks
        b"g": [(0xCE, 0xCF), (0xD6, 0xDB)],  # Greek, Hebrew, Arabic
        b"c": [(0xD0, 0xD3)],  # Cyrillic
        b"i": [(0xE0, 0xE0), (0xE3, 0xE3)],  # India, Thailand, kana
        b"h": [(0xE4, 0xE9)],  # Han
        b"3": [(0xE1, 0xE2), (0xEA, 0xEF)],
        b"4": [(0xF0, 0xFF)],
    }
    for kind, positions in ranges.items():
        for first, last in positions:
            kinds[first : last + 1] = kind * (last - first + 1)
    return bytes(kinds)


_KINDS = _kinds()
# In hundredths of a token. A letter with a mark breaks its word into pieces, so it counts for more than itself.
_BEYOND_ASCII = {
    b" ": 30,
    b"2": 225,
    b"l": 400,
    b"g": 140,
    b"c": 95,
    b"i": 210,
    b"h": 250,
    b"3": 300,
    b"4": 400,
}


def max_tokens(text: str) -> int:
    """Return the maximum tokens of a text: rather too many than too few, and one more for its beginning."""
    kinds = text.encode(errors="replace").translate(_KINDS)
    hundredths = sum(_ascii(kinds[index : index + SLICE]) for index in range(0, len(kinds), SLICE))
    if not text.isascii():
        hundredths += sum(weight * kinds.count(kind) for kind, weight in _BEYOND_ASCII.items())
    return (hundredths + 199) // 100 if text else 0


def _ascii(kinds: bytes) -> int:
    count = kinds.count
    lower, upper, digits, signs, spaces = count(b"a"), count(b"A"), count(b"0"), count(b"."), count(b" ")
    letters = lower + upper
    # Text without breaks is not language: keys, hashes, encoded bytes.
    unbroken = min(letters, max(0, letters - LONG_WORD * (spaces + signs + 1)))
    blank = max(0, spaces - letters - digits - signs)
    return (
        max(31 * lower + 100 * upper, 100 * min(spaces, letters))
        + 40 * unbroken
        + 100 * digits
        + 70 * min(letters, digits)
        + 100 * min(digits, spaces)
        + 95 * signs
        + 10 * min(signs, digits)
        + 7 * blank
    )
