"""HTTP calls that concern model providers."""

from collections.abc import Sequence

from palyra.core.message import AcceptedMessage
from palyra.core.model.provider_status import ToolProbe
from palyra.gateway.client.http_calls import HttpCalls, segment
from palyra.gateway.records.providers import ProviderModelPage, ProviderPage, ProviderTestRequest

ROOT = "/admin/v1/providers"


class ProviderCalls:
    """Calls the operations on model providers of one daemon."""

    def __init__(self, http: HttpCalls) -> None:
        self._http = http

    def list(self) -> ProviderPage:
        """Return the providers of the settings, and which of them answers."""
        return self._http.get(ProviderPage, ROOT)

    def models(self, name: str) -> Sequence[str]:
        """Return the models that a provider lists."""
        return self._http.get(ProviderModelPage, f"{ROOT}/{segment(name)}/models").models

    def test(self, name: str, *, model: str | None, tools: ToolProbe | None) -> AcceptedMessage:
        """Send a model a test message; return its run."""
        request = ProviderTestRequest(model=model, tools=tools)
        return self._http.post(AcceptedMessage, f"{ROOT}/{segment(name)}/test", request)
