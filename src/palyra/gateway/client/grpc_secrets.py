"""gRPC calls that concern the vault."""

from palyra.core.secret import SealedRecord, SecretRecord, SecretScope, check_name
from palyra.gateway.client.grpc_calls import GrpcCalls
from palyra.gateway.grpc.convert import to_message, to_record
from palyra.gateway.grpc.pb import vault_pb2 as pb
from palyra.gateway.records.secrets import SealedSecretPage


class SecretCalls:
    """Calls the vault methods of one daemon."""

    def __init__(self, calls: GrpcCalls) -> None:
        self._ask = calls.ask

    def set(self, name: str, value: bytes, scope: SecretScope) -> SecretRecord:
        """Store a value under a name; an earlier value is replaced."""
        request = pb.SetSecretRequest(name=check_name(name), value=value, scope=to_message(pb.SecretScope, scope))
        return to_record(SecretRecord, self._ask("VaultService/SetSecret", request, pb.SetSecretResponse).secret)

    def all(self) -> tuple[SecretRecord, ...]:
        """Return the secrets by name, without their values."""
        answer = self._ask("VaultService/ListSecrets", pb.ListSecretsRequest(), pb.ListSecretsResponse)
        return tuple(to_record(SecretRecord, one) for one in answer.secrets)

    def delete(self, name: str) -> None:
        """Delete a secret."""
        request = pb.DeleteSecretRequest(secret_name=check_name(name))
        self._ask("VaultService/DeleteSecret", request, pb.DeleteSecretResponse)

    def sealed(self, *, limit: int) -> SealedSecretPage:
        """Return the sealed secrets, which were detected in texts, the latest first, without their values."""
        answer = self._ask("VaultService/ListSealed", pb.ListSealedRequest(limit=limit), pb.ListSealedResponse)
        sealed = [to_record(SealedRecord, one) for one in answer.sealed]
        return SealedSecretPage(sealed=sealed, next_cursor=answer.next_cursor or None)

    def reveal(self, sealed_id: str) -> str:
        """Return the value that a marker stands for."""
        request = pb.RevealSealedRequest(sealed_id=sealed_id)
        return self._ask("VaultService/RevealSealed", request, pb.RevealSealedResponse).value

    def delete_sealed(self, sealed_id: str) -> None:
        """Delete the value that a marker stands for."""
        request = pb.DeleteSealedRequest(sealed_id=sealed_id)
        self._ask("VaultService/DeleteSealed", request, pb.DeleteSealedResponse)
