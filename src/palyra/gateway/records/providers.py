"""Model providers, as the HTTP API takes and returns them."""

from collections.abc import Sequence

from msgspec import Struct

from palyra.core.model.provider_status import ProviderStatus, ToolProbe


class ProviderTestRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be tested."""

    model: str | None = None
    """The model, as the provider calls it; the provider's default if none is named."""
    tools: ToolProbe | None = None
    """Offer it a tool: `call` requests a call of it, `answer` a hello without one. No tool if not set."""


class ProviderPage(Struct, frozen=True, kw_only=True):
    """Every provider of the settings."""

    default: str
    """The default provider or model, as the settings name it."""
    fallback: tuple[str, ...]
    """The providers or models that answer when the default cannot."""
    providers: Sequence[ProviderStatus]
    next_cursor: str | None = None


class ProviderModelPage(Struct, frozen=True, kw_only=True):
    """The models of a provider, as it lists them."""

    models: Sequence[str]
    next_cursor: str | None = None
