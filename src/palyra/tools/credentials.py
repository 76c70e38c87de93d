"""What a request may prove its sender with: secrets of the person whose run it is, which no tool keeps or shows."""

from typing import Protocol


class Credentials(Protocol):
    """The secrets that the agent of one run may use."""

    async def names(self, host: str, *, tool: str) -> tuple[str, ...]:
        """Return which of them a tool would send to a host, sorted. None is opened for that."""
        ...

    async def headers(self, host: str, *, tool: str) -> dict[str, str]:
        """Return the headers that prove who asks at a host; they go there over TLS, and nowhere else."""
        ...

    def only(self, names: tuple[str, ...]) -> "Credentials":
        """Return these with no headers but those of secrets of these names: the ones that a call was judged with."""
        ...


class NoCredentials:
    """A place without a vault."""

    async def names(self, host: str, *, tool: str) -> tuple[str, ...]:
        return ()

    async def headers(self, host: str, *, tool: str) -> dict[str, str]:
        return {}

    def only(self, names: tuple[str, ...]) -> Credentials:
        return self


NO_CREDENTIALS: Credentials = NoCredentials()
