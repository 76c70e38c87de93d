"""The secrets that the settings refer to: the owner's, fetched when they are used, and hidden in texts from then on."""

import asyncio

from palyra.core.ids import PrincipalId
from palyra.core.secret import SecretValue
from palyra.home import Home
from palyra.runs.services.secrets import SecretService, UsedSecrets
from palyra.secret_references import resolve
from palyra.settings_tables import reference_of

MIN_SECRET_CHARS = 6
"""Shorter values are not hidden in texts: they would turn up by chance."""


class SettingsSecrets:
    """Resolves references. A text that is not a reference is its own value."""

    def __init__(self, home: Home, *, owner: PrincipalId, secrets: SecretService, used: UsedSecrets) -> None:
        self._home = home
        self._owner = owner
        self._secrets = secrets
        self._used = used

    async def value(self, text: str, *, called: str = "") -> str:
        """Return the value that a text refers to. It is hidden in texts under `called`, or under the reference."""
        reference = reference_of(text)
        if reference is None:
            return text
        if reference.kind == "vault":
            return (await self._secrets.value_of(self._owner, reference.rest)).reveal().decode(errors="replace")
        match = await asyncio.to_thread(resolve, reference, base=self._home.path)
        if len(match) >= MIN_SECRET_CHARS:
            self._used.add(self._owner, SecretValue(called or text, match.encode()))
        return match

    def hide(self, text: str) -> str:
        """Return a text without the owner's values, to show to the owner."""
        return self._used.hide_for(self._owner, text)
