"""What is known of models by their names, for OpenAI's dialects and all who speak them."""

import re

from palyra.core.model import ModelCard

UNKNOWN = ModelCard(window_tokens=32_768, max_output_tokens=4096, tools="native", vision=False, reasoning=False)
"""A model of which nothing is known. Many take more; servers of one's own often take less, 4,096 or 8,192 as they come,
and some of them cut off the beginning without a word: `window_tokens` in the model's table says how much it is."""


def _card(window: int, longest: int, *, vision: bool = False) -> ModelCard:
    return ModelCard(window_tokens=window, max_output_tokens=longest, tools="native", vision=vision, reasoning=False)


_FAMILIES: tuple[tuple[re.Pattern[str], ModelCard], ...] = tuple(
    (re.compile(pattern), card)
    for pattern, card in (
        (r"gpt-5.*chat", _card(128_000, 16_384, vision=True)),
        (r"gpt-5", _card(400_000, 128_000, vision=True)),
        (r"gpt-4\.1", _card(1_047_576, 32_768, vision=True)),
        (r"(chatgpt-)?gpt-4o|chatgpt-4o", _card(128_000, 16_384, vision=True)),
        (r"gpt-4-turbo", _card(128_000, 4096, vision=True)),
        (r"gpt-4(?!\.)", _card(8192, 4096)),
        (r"gpt-3\.5", _card(16_385, 4096)),
        (r"gpt-oss", _card(131_072, 32_768)),
        (r"o1-(mini|preview)", _card(128_000, 32_768)),
        (r"o3-mini", _card(200_000, 100_000)),
        (r"o[134]", _card(200_000, 100_000, vision=True)),
        (r"deepseek-(chat|reasoner|v\d)", _card(131_072, 8192)),
        (r"claude", _card(200_000, 8192, vision=True)),
        (r"gemini-(1\.5|[2-9])", _card(1_000_000, 8192, vision=True)),
        (r"mistral-(large|medium)", _card(131_072, 8192)),
    )
)
"""What is known by the beginning of a name. The makers' own figures, or less."""

_MORE = re.compile(r"(o\d|gpt-(?:[5-9]|\d\d))")
_SHORT_IDS = re.compile(r"(open-|labs-)?(mi[sx]tral|ministral|magistral|codestral|devstral|pixtral|voxtral)")
_THINKS = re.compile(r"(o\d|gpt-(?:[5-9]|\d\d)(?!.*chat)|codex|gpt-oss)")


def known(model: str) -> ModelCard:
    """Return what is known of a model; what is not is guessed with care."""
    name = _own(model)
    return next((card for pattern, card in _FAMILIES if pattern.match(name)), UNKNOWN)


def takes_completion_tokens(model: str) -> bool:
    """Tell whether it wants `max_completion_tokens`, and knows `max_tokens` no more."""
    return _MORE.match(_own(model)) is not None


def takes_short_ids(model: str) -> bool:
    """Tell whether it wants ids of calls to have nine letters and digits: Mistral's do, wherever they run."""
    return _SHORT_IDS.match(_own(model)) is not None


def thinks(model: str) -> bool:
    """Tell whether it thinks before it speaks, and wants to be shown its thoughts again."""
    return _THINKS.match(_own(model)) is not None


def _own(model: str) -> str:
    """Return a model's name without the maker that some providers put before it."""
    return model.rpartition("/")[2].lower()
