"""The vault over HTTP. Stored values are never returned; values sealed in a text are revealed only to their owner."""

import base64
import binascii

from starlette.requests import Request

from palyra.core.ids import PrincipalId
from palyra.core.secret import SecretScope, SecretValueInvalid
from palyra.gateway.cursor import from_sealed, page, to_position
from palyra.gateway.http.declaration import Routes, operation
from palyra.gateway.http.messages import cursor, number
from palyra.gateway.http.operation import CURSOR, page_limit
from palyra.gateway.records.secrets import RevealResponse, SealedSecretPage, SecretPage, SecretRequest, SecretResponse
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import SecretService

LIMIT = page_limit(50)


class SecretRoutes(Routes):
    """The operations that concern secrets. One returns a value: that of a marker, to the principal who sent it."""

    def __init__(self, secrets: SecretService, seals: SecretSealer) -> None:
        self._secrets = secrets
        self._seals = seals

    @operation("listSecrets", "GET /console/v1/secrets")
    async def index(self, principal: PrincipalId) -> SecretPage:
        """List secrets, without their values."""
        return SecretPage(secrets=await self._secrets.list(principal))

    @operation("setSecret", "PUT /console/v1/secrets/{secret_name}")
    async def keep(self, principal: PrincipalId, secret_name: str, body: SecretRequest) -> SecretResponse:
        """Store a secret, or replace it."""
        # As the stored type, which a later version must read and write in the same way.
        scope = SecretScope(**{name: getattr(body.scope, name) for name in body.scope.__struct_fields__})
        record = await self._secrets.set(principal, secret_name, _value(body), scope)
        return SecretResponse(secret=record)

    @operation("deleteSecret", "DELETE /console/v1/secrets/{secret_name}")
    async def delete(self, principal: PrincipalId, secret_name: str) -> None:
        """Delete a secret."""
        await self._secrets.delete(principal, secret_name)

    @operation("listSealedSecrets", "GET /console/v1/sealed", query=(LIMIT, CURSOR))
    async def sealed(self, request: Request, principal: PrincipalId) -> SealedSecretPage:
        """List secrets that were found in texts, without their values."""
        limit, before = number(request, LIMIT), cursor(request, to_position)
        sealed_records = await self._seals.page(principal, before=before, limit=limit + 1)
        sealed, following = page(sealed_records, limit, from_sealed)
        return SealedSecretPage(sealed=sealed, next_cursor=following)

    @operation("revealSealedSecret", "POST /console/v1/sealed/{sealed_id}/reveal")
    async def reveal(self, principal: PrincipalId, sealed_id: str) -> RevealResponse:
        """Show the value of a marker."""
        return RevealResponse(value=await self._seals.reveal(principal, sealed_id))

    @operation("deleteSealedSecret", "DELETE /console/v1/sealed/{sealed_id}")
    async def delete_sealed(self, principal: PrincipalId, sealed_id: str) -> None:
        """Delete the value that a marker stands for, permanently."""
        await self._seals.delete(principal, sealed_id)


def _value(request: SecretRequest) -> bytes:
    try:
        return request.value.encode() if request.encoding == "text" else base64.b64decode(request.value, validate=True)
    except (UnicodeEncodeError, ValueError, binascii.Error):
        raise SecretValueInvalid(f"The value is not valid {request.encoding}. Nothing was stored.") from None
