"""The vault over HTTP. Stored values are never returned; values sealed in a text are revealed only to their owner."""

import base64
import binascii

from starlette.requests import Request
from starlette.responses import Response

from palyra.core.ids import PrincipalId
from palyra.core.secret import SecretScope, SecretValueInvalid
from palyra.gateway.cursor import from_sealed, page, to_position
from palyra.gateway.http.messages import cursor, json_response, number, read_body
from palyra.gateway.http.operation import CURSOR, Operation, page_limit
from palyra.gateway.records.secrets import RevealResponse, SealedSecretPage, SecretPage, SecretRequest, SecretResponse
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import SecretService

LIMIT = page_limit(50)


class SecretRoutes:
    """The operations that concern secrets. One returns a value: that of a marker, to the principal who sent it."""

    def __init__(self, secrets: SecretService, seals: SecretSealer) -> None:
        self._secrets = secrets
        self._seals = seals

    def operations(self) -> list[Operation]:
        every, sealed = "/console/v1/secrets", "/console/v1/sealed"
        one, marked = f"{every}/{{secret_name}}", f"{sealed}/{{sealed_id}}"
        return [
            Operation(
                "listSecrets", "GET", every, self.index, "List secrets, without their values.", answer=SecretPage
            ),
            Operation(
                "setSecret",
                "PUT",
                one,
                self.keep,
                "Store a secret, or replace it.",
                need="write",
                body=SecretRequest,
                answer=SecretResponse,
            ),
            Operation("deleteSecret", "DELETE", one, self.delete, "Delete a secret.", need="write", status=204),
            Operation(
                "listSealedSecrets",
                "GET",
                sealed,
                self.sealed,
                "List secrets that were found in texts, without their values.",
                query=(LIMIT, CURSOR),
                answer=SealedSecretPage,
            ),
            Operation(
                "revealSealedSecret",
                "POST",
                f"{marked}/reveal",
                self.reveal,
                "Show the value of a marker.",
                need="write",
                answer=RevealResponse,
            ),
            Operation(
                "deleteSealedSecret",
                "DELETE",
                marked,
                self.forget,
                "Delete the value that a marker stands for, permanently.",
                need="write",
                status=204,
            ),
        ]

    async def index(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(SecretPage(secrets=await self._secrets.list(principal)))

    async def keep(self, request: Request, principal: PrincipalId) -> Response:
        requested_request = await read_body(request, SecretRequest)
        # As the stored type, which a later version must read and write in the same way.
        scope = SecretScope(
            **{name: getattr(requested_request.scope, name) for name in requested_request.scope.__struct_fields__}
        )
        record = await self._secrets.set(
            principal, request.path_params["secret_name"], _value(requested_request), scope
        )
        return json_response(SecretResponse(secret=record))

    async def delete(self, request: Request, principal: PrincipalId) -> Response:
        await self._secrets.delete(principal, request.path_params["secret_name"])
        return Response(status_code=204)

    async def sealed(self, request: Request, principal: PrincipalId) -> Response:
        limit, before = number(request, LIMIT), cursor(request, to_position)
        sealed_records = await self._seals.page(principal, before=before, limit=limit + 1)
        sealed, following = page(sealed_records, limit, from_sealed)
        return json_response(SealedSecretPage(sealed=sealed, next_cursor=following))

    async def reveal(self, request: Request, principal: PrincipalId) -> Response:
        return json_response(
            RevealResponse(value=await self._seals.reveal(principal, request.path_params["sealed_id"]))
        )

    async def forget(self, request: Request, principal: PrincipalId) -> Response:
        await self._seals.forget(principal, request.path_params["sealed_id"])
        return Response(status_code=204)


def _value(request: SecretRequest) -> bytes:
    try:
        return request.value.encode() if request.encoding == "text" else base64.b64decode(request.value, validate=True)
    except (UnicodeEncodeError, ValueError, binascii.Error):
        raise SecretValueInvalid(f"The value is not valid {request.encoding}. Nothing was stored.") from None
