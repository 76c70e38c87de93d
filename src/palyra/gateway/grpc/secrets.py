"""The vault over gRPC. Stored values are never returned; values sealed in a text are revealed only to their owner."""

from palyra.core.ids import AgentId, PrincipalId
from palyra.core.secret import SecretScope
from palyra.gateway.cursor import from_sealed, page, to_position
from palyra.gateway.grpc.convert import to_message, to_messages
from palyra.gateway.grpc.methods import Handler, Methods
from palyra.gateway.grpc.pb import vault_pb2 as pb
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import SecretService

LISTED, MAX_LISTED = 50, 1000
SERVICE = pb.DESCRIPTOR.services_by_name["VaultService"].full_name


class SecretMethods:
    """The methods that concern secrets."""

    def __init__(self, secrets: SecretService, seals: SecretSealer) -> None:
        self._secrets = secrets
        self._seals = seals

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        return {
            "SetSecret": methods.unary(self.set_secret, pb.SetSecretRequest, need="write"),
            "ListSecrets": methods.unary(self.list_secrets, pb.ListSecretsRequest),
            "DeleteSecret": methods.unary(self.delete_secret, pb.DeleteSecretRequest, need="write"),
            "ListSealed": methods.unary(self.list_sealed, pb.ListSealedRequest),
            "RevealSealed": methods.unary(self.reveal_sealed, pb.RevealSealedRequest, need="write"),
            "DeleteSealed": methods.unary(self.delete_sealed, pb.DeleteSealedRequest, need="write"),
        }

    async def set_secret(self, request: pb.SetSecretRequest, principal: PrincipalId) -> pb.SetSecretResponse:
        record = await self._secrets.set(principal, request.name, request.value, _scope(request.scope))
        return pb.SetSecretResponse(secret=to_message(pb.Secret, record))

    async def list_secrets(self, request: pb.ListSecretsRequest, principal: PrincipalId) -> pb.ListSecretsResponse:
        return pb.ListSecretsResponse(secrets=to_messages(pb.Secret, await self._secrets.list(principal)))

    async def delete_secret(self, request: pb.DeleteSecretRequest, principal: PrincipalId) -> pb.DeleteSecretResponse:
        await self._secrets.delete(principal, request.secret_name)
        return pb.DeleteSecretResponse()

    async def list_sealed(self, request: pb.ListSealedRequest, principal: PrincipalId) -> pb.ListSealedResponse:
        limit = min(request.limit, MAX_LISTED) if request.limit > 0 else LISTED
        before = to_position(request.cursor) if request.cursor else None
        sealed = await self._seals.page(principal, before=before, limit=limit + 1)
        listed, following = page(sealed, limit, from_sealed)
        return pb.ListSealedResponse(sealed=to_messages(pb.Sealed, listed), next_cursor=following)

    async def reveal_sealed(self, request: pb.RevealSealedRequest, principal: PrincipalId) -> pb.RevealSealedResponse:
        return pb.RevealSealedResponse(value=await self._seals.reveal(principal, request.sealed_id))

    async def delete_sealed(self, request: pb.DeleteSealedRequest, principal: PrincipalId) -> pb.DeleteSealedResponse:
        await self._seals.delete(principal, request.sealed_id)
        return pb.DeleteSealedResponse()


def _scope(scope: pb.SecretScope) -> SecretScope:
    usual = SecretScope()
    return SecretScope(
        hosts=tuple(scope.hosts),
        header=scope.header or usual.header,
        format=scope.format or usual.format,
        agents=tuple(map(AgentId, scope.agents)),
        tools=tuple(scope.tools),
    )
