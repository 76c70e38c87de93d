"""How a request authenticates: with secrets of the run's principal, which no tool keeps or shows."""

from typing import Protocol


class Credentials(Protocol):
    """The secrets that the agent of one run may use."""

    async def names(self, host: str, *, tool: str) -> tuple[str, ...]:
        """Return which of them a tool would send to a host, sorted. None is opened for that."""
        ...

    async def headers(self, host: str, *, tool: str) -> dict[str, str]:
        """Return the headers that authenticate to a host; they go there over TLS, and nowhere else."""
        ...

    def only(self, names: tuple[str, ...]) -> "Credentials":
        """Return these credentials, limited to the secrets of these names: those with which a call was judged."""
        ...


class NoCredentials:
    """For contexts without a vault."""

    async def names(self, host: str, *, tool: str) -> tuple[str, ...]:
        return ()

    async def headers(self, host: str, *, tool: str) -> dict[str, str]:
        return {}

    def only(self, names: tuple[str, ...]) -> Credentials:
        return self


NO_CREDENTIALS: Credentials = NoCredentials()
