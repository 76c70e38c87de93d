"""Estimates token usage, for providers that do not report it."""

from palyra.core.model.prompt import Prompt, estimate_tokens
from palyra.core.spending.usage import Usage


def estimate(prompt: Prompt, answer: str) -> Usage:
    """Estimate the tokens of a prompt and of its answer."""
    requested = estimate_tokens(prompt.system)
    for message in prompt.messages:
        requested += estimate_tokens(message.text) + sum(estimate_tokens(str(call.arguments)) for call in message.calls)
    return Usage(input_tokens=requested, output_tokens=estimate_tokens(answer))
