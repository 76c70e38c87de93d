"""What is known about models by their names, for OpenAI's dialects and compatible servers."""

import re

from palyra.core.model.catalog import ModelCard

UNKNOWN = ModelCard(window_tokens=32_768, max_output_tokens=4096, tools="native", vision=False, reasoning=False)
"""An unknown model. Many accept more; self-hosted servers often accept less, 4,096 or 8,192 by default, and some of
them silently cut off the beginning: set `window_tokens` in the model's table."""


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
"""Known by the prefix of a name. The vendors' own figures, or less."""

_MORE = re.compile(r"(o\d|gpt-(?:[5-9]|\d\d))")
_SHORT_IDS = re.compile(r"(open-|labs-)?(mi[sx]tral|ministral|magistral|codestral|devstral|pixtral|voxtral)")
_THINKS = re.compile(r"(o\d|gpt-(?:[5-9]|\d\d)(?!.*chat)|codex|gpt-oss)")


def model_card(model: str) -> ModelCard:
    """Return what is known about a model; the rest is estimated conservatively."""
    name = _own(model)
    return next((card for pattern, card in _FAMILIES if pattern.match(name)), UNKNOWN)


def takes_completion_tokens(model: str) -> bool:
    """Return whether it requires `max_completion_tokens` instead of `max_tokens`."""
    return _MORE.match(_own(model)) is not None


def takes_short_ids(model: str) -> bool:
    """Return whether it requires call ids of nine letters and digits: Mistral's models do, wherever they run."""
    return _SHORT_IDS.match(_own(model)) is not None


def thinks(model: str) -> bool:
    """Return whether it reasons before it answers, and must get its reasoning back."""
    return _THINKS.match(_own(model)) is not None


def _own(model: str) -> str:
    """Return a model's name without the vendor prefix that some providers add."""
    return model.rpartition("/")[2].lower()
