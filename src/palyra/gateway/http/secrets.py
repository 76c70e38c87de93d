"""The vault over HTTP: values go in and never come out."""

import base64
import binascii
from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.secret import SecretRecord, SecretScope, SecretValueInvalid
from palyra.gateway.http.operation import Operation
from palyra.gateway.http.wire import body, reply
from palyra.runs.secrets import Secrets


class ScopeRequest(SecretScope, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a secret may be used for; what is left out has its default."""


class SecretRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A secret to be kept."""

    name: str
    value: str
    encoding: Literal["text", "base64"] = "text"
    """How the value is written; base64 for one that is no text."""
    scope: ScopeRequest = ScopeRequest()


class SecretsAnswer(Struct, frozen=True, kw_only=True):
    """Secrets by name, without their values."""

    secrets: list[SecretRecord]


class SecretAnswer(Struct, frozen=True, kw_only=True):
    """One secret, without its value."""

    secret: SecretRecord


class SecretRoutes:
    """The operations that concern secrets. None of them returns a value."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def operations(self) -> list[Operation]:
        every = "/console/v1/secrets"
        return [
            Operation("GET", every, self.index, "List secrets, without their values.", answer=SecretsAnswer),
            Operation(
                "POST", every, self.keep, "Keep a secret.", need="write", body=SecretRequest, answer=SecretAnswer
            ),
            Operation("DELETE", f"{every}/{{secret_name}}", self.delete, "Forget a secret.", need="write", status=204),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return reply(SecretsAnswer(secrets=await self._secrets.list(principal)))

    async def keep(self, request: Request, principal: PrincipalId) -> Response:
        asked = await body(request, SecretRequest)
        # As what it is kept as, which a later version of ours must read and write in the same way.
        scope = SecretScope(**{name: getattr(asked.scope, name) for name in asked.scope.__struct_fields__})
        record = await self._secrets.set(principal, asked.name, _value(asked), scope)
        return reply(SecretAnswer(secret=record))

    async def delete(self, request: Request, principal: PrincipalId) -> Response:
        await self._secrets.delete(principal, request.path_params["secret_name"])
        return Response(status_code=204)


def _value(asked: SecretRequest) -> bytes:
    try:
        return asked.value.encode() if asked.encoding == "text" else base64.b64decode(asked.value, validate=True)
    except (UnicodeEncodeError, ValueError, binascii.Error):
        raise SecretValueInvalid(f"The value is no valid {asked.encoding}. Nothing was kept.") from None
