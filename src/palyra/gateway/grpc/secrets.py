"""The vault over gRPC: values go in and never come out."""

from palyra.core.ids import AgentId, PrincipalId
from palyra.core.secret import SecretRecord, SecretScope
from palyra.gateway.grpc.pb import vault_pb2 as pb
from palyra.gateway.grpc.serving import Handler, Methods
from palyra.runs.secrets import Secrets

SERVICE = pb.DESCRIPTOR.services_by_name["VaultService"].full_name


class SecretMethods:
    """The methods that concern secrets."""

    def __init__(self, doors: Secrets) -> None:
        self._doors = doors

    def handlers(self, methods: Methods) -> dict[str, Handler]:
        return {
            "SetSecret": methods.unary(self.set_secret, pb.SetSecretRequest, need="write"),
            "ListSecrets": methods.unary(self.list_secrets, pb.ListSecretsRequest),
            "DeleteSecret": methods.unary(self.delete_secret, pb.DeleteSecretRequest, need="write"),
        }

    async def set_secret(self, asked: pb.SetSecretRequest, principal: PrincipalId) -> pb.SetSecretResponse:
        record = await self._doors.set(principal, asked.name, asked.value, _scope(asked.scope))
        return pb.SetSecretResponse(secret=_secret(record))

    async def list_secrets(self, asked: pb.ListSecretsRequest, principal: PrincipalId) -> pb.ListSecretsResponse:
        return pb.ListSecretsResponse(secrets=map(_secret, await self._doors.list(principal)))

    async def delete_secret(self, asked: pb.DeleteSecretRequest, principal: PrincipalId) -> pb.DeleteSecretResponse:
        await self._doors.delete(principal, asked.secret_name)
        return pb.DeleteSecretResponse()


def _scope(scope: pb.SecretScope) -> SecretScope:
    usual = SecretScope()
    return SecretScope(
        hosts=tuple(scope.hosts),
        header=scope.header or usual.header,
        format=scope.format or usual.format,
        agents=tuple(map(AgentId, scope.agents)),
        tools=tuple(scope.tools),
    )


def _secret(record: SecretRecord) -> pb.Secret:
    scope = record.scope
    return pb.Secret(
        name=record.name,
        principal=record.principal,
        version=record.version,
        scope=pb.SecretScope(
            hosts=scope.hosts, header=scope.header, format=scope.format, agents=scope.agents, tools=scope.tools
        ),
        created_at=record.created_at,
        updated_at=record.updated_at,
        last_used_at=record.last_used_at,
    )
