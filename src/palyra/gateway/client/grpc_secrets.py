"""gRPC calls that concern the vault."""

from datetime import UTC

from palyra.core.ids import AgentId, PrincipalId
from palyra.core.secret import SealedRecord, SecretRecord, SecretScope, check_name
from palyra.gateway.client.grpc_calls import GrpcCalls
from palyra.gateway.grpc.pb import vault_pb2 as pb
from palyra.gateway.records.secrets import SealedSecretPage


class SecretCalls:
    """Calls the vault methods of one daemon."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._ask = calls.ask

    def set(self, name: str, value: bytes, scope: SecretScope) -> SecretRecord:
        """Store a value under a name; an earlier value is replaced."""
        secret_scope = pb.SecretScope(
            hosts=scope.hosts, header=scope.header, format=scope.format, agents=scope.agents, tools=scope.tools
        )
        request = pb.SetSecretRequest(name=check_name(name), value=value, scope=secret_scope)
        return _record(self._ask("VaultService/SetSecret", request, pb.SetSecretResponse).secret)

    def all(self) -> tuple[SecretRecord, ...]:
        """Return the secrets by name, without their values."""
        answer = self._ask("VaultService/ListSecrets", pb.ListSecretsRequest(), pb.ListSecretsResponse)
        return tuple(map(_record, answer.secrets))

    def delete(self, name: str) -> None:
        """Delete a secret."""
        request = pb.DeleteSecretRequest(secret_name=check_name(name))
        self._ask("VaultService/DeleteSecret", request, pb.DeleteSecretResponse)

    def sealed(self, *, limit: int) -> SealedSecretPage:
        """Return the sealed secrets, which were detected in texts, the latest first, without their values."""
        answer = self._ask("VaultService/ListSealed", pb.ListSealedRequest(limit=limit), pb.ListSealedResponse)
        sealed = [
            SealedRecord(
                sealed_id=one.sealed_id,
                origins=tuple(one.origins),
                created_at=one.created_at.ToDatetime(tzinfo=UTC),
            )
            for one in answer.sealed
        ]
        return SealedSecretPage(sealed=sealed, next_cursor=answer.next_cursor or None)

    def reveal(self, sealed_id: str) -> str:
        """Return the value that a marker stands for."""
        request = pb.RevealSealedRequest(sealed_id=sealed_id)
        return self._ask("VaultService/RevealSealed", request, pb.RevealSealedResponse).value

    def delete_sealed(self, sealed_id: str) -> None:
        """Delete the value that a marker stands for."""
        request = pb.DeleteSealedRequest(sealed_id=sealed_id)
        self._ask("VaultService/DeleteSealed", request, pb.DeleteSealedResponse)


def _record(secret: pb.Secret) -> SecretRecord:
    scope = secret.scope
    return SecretRecord(
        name=secret.name,
        principal=PrincipalId(secret.principal),
        version=secret.version,
        scope=SecretScope(
            hosts=tuple(scope.hosts),
            header=scope.header,
            format=scope.format,
            agents=tuple(map(AgentId, scope.agents)),
            tools=tuple(scope.tools),
        ),
        created_at=secret.created_at.ToDatetime(tzinfo=UTC),
        updated_at=secret.updated_at.ToDatetime(tzinfo=UTC),
        last_used_at=secret.last_used_at.ToDatetime(tzinfo=UTC) if secret.HasField("last_used_at") else None,
    )
