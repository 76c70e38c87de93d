"""Records and gRPC messages have fields of the same names."""

import pytest
from google.protobuf.message import Message
from msgspec import Struct, ValidationError

from palyra.core.limits import Limits
from palyra.core.message import AcceptedMessage
from palyra.core.policy.approval import Approval, Grant
from palyra.core.policy.effect import Effect
from palyra.core.run.record import RunRecord
from palyra.core.secret import SealedRecord, SecretRecord, SecretScope
from palyra.core.session import Session, SessionRef
from palyra.core.stop import EmergencyStop
from palyra.gateway.grpc import convert
from palyra.gateway.grpc.pb import approvals_pb2, gateway_pb2, stops_pb2, vault_pb2
from palyra.gateway.records.daemon import DaemonPart, DaemonStatus
from tests.support.builders import RUN, SESSION

PAIRS = [
    (gateway_pb2.Accepted, AcceptedMessage),
    (gateway_pb2.Limits, Limits),
    (gateway_pb2.PartHealth, DaemonPart),
    (gateway_pb2.Run, RunRecord),
    (gateway_pb2.Session, Session),
    (gateway_pb2.SessionRef, SessionRef),
    (approvals_pb2.Approval, Approval),
    (approvals_pb2.Effect, Effect),
    (approvals_pb2.Grant, Grant),
    (approvals_pb2.ReissueApprovalResponse, AcceptedMessage),
    (stops_pb2.Stop, EmergencyStop),
    (vault_pb2.Sealed, SealedRecord),
    (vault_pb2.Secret, SecretRecord),
    (vault_pb2.SecretScope, SecretScope),
]


@pytest.mark.parametrize(("message", "record"), PAIRS)
def test_each_field_of_a_message_is_one_of_its_record(message: type[Message], record: type[Struct]) -> None:
    assert {field.name for field in message.DESCRIPTOR.fields} <= set(record.__struct_fields__)


def test_a_status_is_read_as_it_was_written() -> None:
    parts = [DaemonPart(name="journal", status="ok", detail="fine")]
    status = DaemonStatus(version="1", provider="p", model="m", storage="ok", parts=parts, pid=7, runs={"b": 1, "a": 2})
    message = convert.to_message(gateway_pb2.GetHealthResponse, status)
    assert convert.to_record(DaemonStatus, message) == status


def test_what_is_empty_is_none_if_the_record_allows_it() -> None:
    accepted = AcceptedMessage(run_id=RUN, session_id=SESSION, after_seq=0)
    message = convert.to_message(gateway_pb2.Accepted, accepted)
    assert message.waiting_for == ""
    assert convert.to_record(AcceptedMessage, message) == accepted


def test_an_unknown_status_of_a_run_is_refused() -> None:
    with pytest.raises(ValidationError):
        convert.to_record(RunRecord, gateway_pb2.Run(run_id=RUN, status="dancing"))
