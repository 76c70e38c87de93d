"""The secrets that the settings refer to: the owner's, fetched when they are used, and hidden in texts from then on."""

import asyncio

from palyra.core.ids import PrincipalId
from palyra.core.secret import SecretValue
from palyra.home import Home
from palyra.references import resolve
from palyra.runs.secrets import Secrets, Used
from palyra.tables import reference_of

LEAST_SECRET = 6
"""Shorter values are not hidden in texts: they would turn up by chance."""


class Referred:
    """Follows references. A text that is none stands for itself."""

    def __init__(self, home: Home, *, owner: PrincipalId, secrets: Secrets, used: Used) -> None:
        self._home = home
        self._owner = owner
        self._secrets = secrets
        self._used = used

    async def value(self, text: str, *, called: str = "") -> str:
        """Return what a text refers to. In texts it is hidden by what it is called, or by the reference."""
        reference = reference_of(text)
        if reference is None:
            return text
        if reference.kind == "vault":
            return (await self._secrets.value_of(self._owner, reference.rest)).reveal().decode(errors="replace")
        found = await asyncio.to_thread(resolve, reference, base=self._home.path)
        if len(found) >= LEAST_SECRET:
            self._used.add(self._owner, SecretValue(called or text, found.encode()))
        return found

    def hide(self, text: str) -> str:
        """Return a text that is shown to the owner without values of theirs."""
        return self._used.hide_for(self._owner, text)
