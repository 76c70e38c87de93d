"""The gRPC door on the wire: what no proper client sends ends one line at most, and costs little."""

import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.settings import SettingCodes
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    PriorityFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palyra.gateway.error_status import GrpcStatus
from palyra.gateway.grpc.connection import MAX_IDLE, MAX_RESETS
from palyra.gateway.grpc.http2 import MAX_CALLS
from palyra.gateway.grpc.methods import ANYBODYS_BYTES, ANYBODYS_CALLS
from palyra.gateway.grpc.pb import gateway_pb2 as pb
from palyra.gateway.grpc.server_call import MAX_REQUEST_BYTES
from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon, Json, until
from tests.support.http2_client import CONFIG, Wire, framed, head

MEBIBYTE = 1024 * 1024
SERVICE = pb.DESCRIPTOR.services_by_name["GatewayService"].full_name
HEALTH = f"/{SERVICE}/GetHealth"
ROUTE = f"/{SERVICE}/RouteMessage"
RUN_STREAM = f"/{SERVICE}/RunStream"
SESSIONS = f"/{SERVICE}/ListSessions"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECTION = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
EMPTY = framed(b"")
DESCRIBE = framed(reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE).SerializeToString())
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
CALM = ErrorCodes.ENHANCE_YOUR_CALM
PLACES = 8
OTHERS = 4
"""So many handles the journal may take and give back meanwhile."""


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One daemon for all of it: what a test does to it, the next would notice."""
    folder = tmp_path_factory.mktemp("wire")
    script = folder / "script.json"
    script.write_text(json.dumps({"default": [{"do": "text", "text": "You said: {input}"}]}))
    daemon = Daemon(
        folder / "home",
        output=folder / "output",
        model_provider="scripted",
        model_script=script,
        gateway_max_streams_per_token=PLACES,
    )
    try:
        daemon.start()
        assert healthy(daemon)
        yield daemon
        assert daemon.stop() == 0
    finally:
        daemon.close()


@pytest.fixture
def daemon(lasting: Daemon) -> Iterator[Daemon]:
    """A daemon that must be as well after the test as before it, and hold nothing more."""
    before = handles(lasting)
    yield lasting
    assert healthy(lasting)
    until(lambda: handles(lasting) <= before + OTHERS)
    assert troubles(lasting) == []


def troubles(daemon: Daemon) -> list[Json]:
    """Return what the log has beyond what is to be expected."""
    return [entry for entry in daemon.log() if entry["level"] in ("error", "warning")]


def address(daemon: Daemon) -> str:
    return str(json.loads(daemon.home.daemon.read_text())["grpc"])


def line(daemon: Daemon, *, window: int | None = None, reads: bool = True) -> Wire:
    return Wire(
        address(daemon),
        settings=None if window is None else {SettingCodes.INITIAL_WINDOW_SIZE: window},
        reads=reads,
    )


def healthy(daemon: Daemon) -> bool:
    """Ask on a line of its own how the daemon is."""
    with line(daemon) as wire:
        answer = wire.answer(wire.call(HEALTH, EMPTY))
        return answer.status == 0 and pb.GetHealthResponse.FromString(answer.message).status == "ok"


def bearer(daemon: Daemon) -> dict[str, str]:
    return {"authorization": f"Bearer {daemon.token}"}


def handles(daemon: Daemon) -> int:
    return len(os.listdir(f"/proc/{daemon.pid}/fd"))


def resident(daemon: Daemon) -> int:
    return int(Path(f"/proc/{daemon.pid}/statm").read_text().split()[1]) * 4096


# -- what is no HTTP/2, or breaks its rules


@pytest.mark.parametrize(
    "opening",
    [
        b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\rX",
        b"\x00",
    ],
)
def test_what_is_no_http2_is_hung_up_on(daemon: Daemon, opening: bytes) -> None:
    with Raw(daemon, opening) as raw:
        assert raw.ended_with() is None


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        # The head of a frame is enough: nobody waits for the rest of what would be refused.
        (struct.pack(">I", 16 * 1024 + 1)[1:] + b"\x00\x00\x00\x00\x00\x01", ErrorCodes.FRAME_SIZE_ERROR),
        (b"\xff\xff\xff\x04\x00\x00\x00\x00\x00", ErrorCodes.FRAME_SIZE_ERROR),
        (WindowUpdateFrame(0, window_increment=2**31 - 1).serialize() * 2, ErrorCodes.FLOW_CONTROL_ERROR),
        (b"\x00\x00\x04\x08\x00\x00\x00\x00\x00" + bytes(4), ErrorCodes.PROTOCOL_ERROR),
        (DataFrame(1, data=b"x").serialize(), ErrorCodes.PROTOCOL_ERROR),
        (HeadersFrame(2, data=b"\x83", flags=["END_HEADERS"]).serialize(), ErrorCodes.PROTOCOL_ERROR),
        (ContinuationFrame(1, data=b"x").serialize(), ErrorCodes.PROTOCOL_ERROR),
        (HeadersFrame(1, data=b"\xff" * 100, flags=["END_HEADERS"]).serialize(), ErrorCodes.PROTOCOL_ERROR),
        (HeadersFrame(1, data=b"\x20" * 16_000, flags=["END_HEADERS"]).serialize(), ErrorCodes.PROTOCOL_ERROR),
        (
            HeadersFrame(1, data=b"\x20" * 16_000).serialize()
            + ContinuationFrame(1, data=b"\x20" * 16_000).serialize() * 60,
            CALM,
        ),
    ],
)
def test_who_breaks_the_rules_is_told_which_and_hung_up_on(daemon: Daemon, frames: bytes, code: ErrorCodes) -> None:
    with Raw(daemon, PREFACE + SettingsFrame(0).serialize() + frames) as raw:
        assert raw.ended_with() == code


def test_a_head_has_sixteen_kibibytes_at_most(daemon: Daemon) -> None:
    with line(daemon) as wire:
        assert wire.answer(wire.call(HEALTH, EMPTY, headers={"x": "y" * 15_000})).status == 0
        wire.call(HEALTH, EMPTY, headers={"x": "y" * 17_000})
        assert wire.hung_up() == CALM


def test_a_token_is_not_written_to_the_log_by_a_wrong_head(daemon: Daemon) -> None:
    with line(daemon) as wire:
        for value in (f"Bearer {daemon.token} more", f"Bearer {daemon.token}\x00", f"Bearer{daemon.token}"):
            assert wire.answer(wire.call(SESSIONS, EMPTY, headers={"authorization": value})).code == "unauthenticated"
        wire.call(SESSIONS, EMPTY, headers={"AUTHORIZATION": f"Bearer {daemon.token}", "connection": "close"})
        assert healthy(daemon)
    assert daemon.token not in daemon.home.log.read_text()


# -- what is allowed, and too much


@pytest.mark.parametrize(
    "frame",
    [
        PingFrame(0).serialize(),
        PingFrame(0, flags=["ACK"]).serialize(),
        SettingsFrame(0).serialize(),
        SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 70_000}).serialize(),
        WindowUpdateFrame(0, window_increment=1).serialize(),
        PriorityFrame(99, depends_on=1).serialize(),
        DataFrame(1).serialize(),
        b"\x00\x00\x00\xee\x00\x00\x00\x00\x00",
    ],
)
def test_a_flood_of_what_asks_for_nothing_is_stopped(daemon: Daemon, frame: bytes) -> None:
    before = daemon.home.log.read_text().count("too many frames without requests")
    with line(daemon) as wire:
        wire.call(WATCH, EMPTY, end=False)
        wire.until(lambda: bool(wire.answers[1].body))
        wire.raw(frame * (50 if frame[3] == SettingsFrame.type else 1_000))
        assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0
        wire.raw(frame * (MAX_IDLE + 1))
        assert wire.hung_up() in (CALM, None)
    until(lambda: daemon.home.log.read_text().count("too many frames without requests") == before + 1)


def test_calls_taken_back_are_counted_also_within_one_breath(daemon: Daemon) -> None:
    with line(daemon) as wire:
        for _ in range(MAX_RESETS):
            wire.http2.reset_stream(wire.call(WATCH, end=False, flush=False))
        wire.flush()
        assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0
        wire.http2.reset_stream(wire.call(WATCH, end=False, flush=False))
        wire.flush()
        assert wire.hung_up() == CALM


def test_settings_that_mean_nothing_are_not_kept(daemon: Daemon) -> None:
    def unknown(start: int) -> bytes:
        body = b"".join(struct.pack(">HL", code, 1) for code in range(start, start + 2_700))
        return struct.pack(">I", len(body))[1:] + b"\x04" + bytes(5) + body

    before = resident(daemon)
    with ExitStack() as stack:
        for _ in range(4):
            wire = stack.enter_context(line(daemon))
            for start in range(100, 62_000, 2_700):
                wire.raw(unknown(start))
            assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0
        assert resident(daemon) - before < 24 * MEBIBYTE


def test_a_table_for_heads_is_as_small_as_the_caller_wants_and_no_larger_than_ours(daemon: Daemon) -> None:
    for size in (0, 2**32 - 1):
        with Wire(address(daemon), settings={SettingCodes.HEADER_TABLE_SIZE: size}) as wire:
            wire.http2.decoder.max_allowed_table_size = min(size, 4096)
            for number in range(50):
                answer = wire.answer(wire.call(f"/no/{number}", EMPTY))
                assert answer.status == GrpcStatus.UNIMPLEMENTED
            assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0


def test_a_line_carries_so_many_calls_at_once(daemon: Daemon) -> None:
    with line(daemon) as wire:
        wire.receive()
        assert wire.http2.remote_settings.max_concurrent_streams == MAX_CALLS
        wire.http2.remote_settings[SettingCodes.MAX_CONCURRENT_STREAMS] = MAX_CALLS + 1
        wire.http2.remote_settings.acknowledge()
        for _ in range(MAX_CALLS + 1):
            wire.call(ROUTE, headers=bearer(daemon), end=False, flush=False)
        wire.flush()
        assert wire.hung_up() == ErrorCodes.PROTOCOL_ERROR


# -- requests


def test_a_request_may_have_a_mebibyte_and_any_padding(daemon: Daemon) -> None:
    message = pb.RouteMessageRequest(message=pb.InboundMessage(text="x" * (MAX_REQUEST_BYTES - 20))).SerializeToString()
    with line(daemon) as wire:
        for padding in (None, 0, 255):
            stream_id = wire.call(ROUTE, headers=bearer(daemon), end=False)
            wire.data(stream_id, framed(message), padding=padding)
            # All of it was read: it is the text in it that is too long.
            assert wire.answer(stream_id).code == "message_too_large"
        large = struct.pack(">BI", 0, MAX_REQUEST_BYTES + 1)
        answer = wire.answer(wire.call(ROUTE, large, headers=bearer(daemon), end=False))
        assert (answer.status, answer.code) == (GrpcStatus.RESOURCE_EXHAUSTED, "request_too_large")
        assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0


@pytest.mark.parametrize("path", [HEALTH, CHECK, WATCH, REFLECTION])
def test_whoever_shows_no_token_may_send_little(daemon: Daemon, path: str) -> None:
    with line(daemon) as wire:
        large = struct.pack(">BI", 0, ANYBODYS_BYTES + 1)
        answer = wire.answer(wire.call(path, large, end=False))
        assert (answer.status, answer.code) == (GrpcStatus.RESOURCE_EXHAUSTED, "request_too_large")


def test_requests_that_nobody_reads_cost_their_window_and_no_more(daemon: Daemon) -> None:
    """A call that is refused, or waits for its reader, takes in no further data."""
    before = resident(daemon)
    junk = bytes(60_000)
    with line(daemon, window=0) as wire:
        for _ in range(ANYBODYS_CALLS):
            stream_id = wire.call(REFLECTION, DESCRIBE, end=False)
            wire.data(stream_id, junk, end=False)
        assert resident(daemon) - before < ANYBODYS_CALLS * 256 * 1024
        assert healthy(daemon)


def test_a_message_that_is_cut_off_is_malformed_and_one_that_is_compressed_not_taken(daemon: Daemon) -> None:
    with line(daemon) as wire:
        compressed = wire.answer(wire.call(HEALTH, b"\x01" + EMPTY[1:]))
        assert (compressed.status, compressed.code) == (GrpcStatus.UNIMPLEMENTED, "request_compression_unsupported")
        for body in (EMPTY[:3], framed(b"1234")[:-1]):
            answer = wire.answer(wire.call(HEALTH, body))
            assert (answer.status, answer.code) == (GrpcStatus.INVALID_ARGUMENT, "request_invalid")
        assert wire.answer(wire.call(HEALTH)).code == "request_invalid"


def test_a_call_is_known_by_its_path_its_method_and_its_type(daemon: Daemon) -> None:
    with line(daemon) as wire:
        for path in ("/", "*", HEALTH + "/", HEALTH + "?a=b", HEALTH[1:], HEALTH.upper(), "//" + HEALTH, "/\x7f"):
            assert wire.answer(wire.call(path, EMPTY)).status == GrpcStatus.UNIMPLEMENTED
        for kind in ("application/grpc+proto", "application/grpc;charset=utf-8"):
            assert wire.answer(wire.call(HEALTH, EMPTY, headers={"content-type": kind})).status == 0
        for kind in ("application/grpc-web", "application/json", "application/grpcx", ""):
            answer = wire.answer(wire.call(HEALTH, EMPTY, headers={"content-type": kind}))
            assert answer.headers == {":status": "415"}
        for method in ("GET", "PUT", "post"):
            assert wire.answer(wire.call(HEALTH, headers={":method": method})).headers == {":status": "405"}


def test_metadata_of_any_kind_is_borne(daemon: Daemon) -> None:
    with line(daemon) as wire:
        odd = {"trace-bin": "AAH/gA", "x": "\xff\xfe", "grpc-encoding": "gzip", "authorization": "Bearer \xe9"}
        assert wire.answer(wire.call(HEALTH, EMPTY, headers=odd)).status == 0
        answer = wire.answer(wire.call(SESSIONS, EMPTY, headers=odd))
        assert (answer.status, answer.code) == (GrpcStatus.UNAUTHENTICATED, "unauthenticated")


@pytest.mark.parametrize("timeout", ["0n", "1n", "1u", "1m"])
def test_a_deadline_that_is_over_ends_the_call(daemon: Daemon, timeout: str) -> None:
    with line(daemon) as wire:
        answer = wire.answer(wire.call(WATCH, EMPTY, headers={"grpc-timeout": timeout}))
        assert answer.status == GrpcStatus.DEADLINE_EXCEEDED


@pytest.mark.parametrize("timeout", ["99999999H", "", "-1S", "1", "S", "999999999S", "1s", "\u0661S", "1.5S", "1S1S"])
def test_a_deadline_that_is_far_or_none_at_all_ends_nothing(daemon: Daemon, timeout: str) -> None:
    with line(daemon) as wire:
        assert wire.answer(wire.call(HEALTH, EMPTY, headers={"grpc-timeout": timeout})).status == 0


def test_a_deadline_ends_also_what_nobody_reads_and_gives_its_place_back(daemon: Daemon) -> None:
    session_id = daemon.send("hello")["session_id"]
    attach = framed(pb.AttachSessionRequest(session_id=session_id).SerializeToString())
    with line(daemon, window=0) as wire:
        for _ in range(3):
            calls = [
                wire.call(f"/{SERVICE}/AttachSession", attach, headers={**bearer(daemon), "grpc-timeout": "100m"})
                for _ in range(PLACES)
            ]
            assert {wire.answer(call).status for call in calls} == {GrpcStatus.DEADLINE_EXCEEDED}


# -- answers


def test_an_answer_comes_whole_however_the_room_for_it_changes(daemon: Daemon) -> None:
    with line(daemon) as plain:
        whole = plain.answer(plain.call(REFLECTION, DESCRIBE)).body
    assert len(whole) > 5_000
    with line(daemon, window=1, reads=False) as wire:
        stream_id = wire.call(REFLECTION, DESCRIBE)
        answer = wire.answers[stream_id]

        def took(size: int) -> Callable[[], bool]:
            return lambda: len(answer.body) == size

        wire.until(took(1))
        for size in range(2, 20):
            wire.http2.increment_flow_control_window(1, stream_id)
            wire.flush()
            wire.until(took(size))
        # A smaller window than what has been sent already: the room is less than none, and grows from there.
        wire.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: 0})
        wire.http2.increment_flow_control_window(1, stream_id)
        wire.flush()
        assert healthy(daemon)
        wire.http2.increment_flow_control_window(100, stream_id)
        wire.flush()
        wire.until(took(19 + 100))
        wire.http2.update_settings({SettingCodes.INITIAL_WINDOW_SIZE: MEBIBYTE, SettingCodes.MAX_FRAME_SIZE: 2**20})
        wire.flush()
        assert wire.answer(stream_id).body == whole
        assert answer.status == 0


def test_an_unread_line_is_not_read_from_and_holds_up_nobody(daemon: Daemon) -> None:
    before = resident(daemon)
    with Raw(daemon, PREFACE + SettingsFrame(0, settings={}).serialize()) as raw:
        ping = PingFrame(0).serialize()
        raw.fill(ping * 900)
        assert healthy(daemon)
        assert resident(daemon) - before < 16 * MEBIBYTE


@pytest.mark.parametrize("path", [WATCH, REFLECTION])
def test_so_many_calls_without_a_token_are_open_at_once(daemon: Daemon, path: str) -> None:
    with line(daemon) as wire:
        for _ in range(ANYBODYS_CALLS):
            wire.call(path, DESCRIBE if path == REFLECTION else EMPTY, end=False)
        answer = wire.answer(wire.call(path, EMPTY, end=False))
        assert (answer.status, answer.code) == (GrpcStatus.RESOURCE_EXHAUSTED, "stream_limit_reached")
        assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0

    def room() -> bool:
        with line(daemon) as again:
            stream_id = again.call(path, DESCRIBE if path == REFLECTION else EMPTY, end=False)
            again.until(lambda: bool(again.answers[stream_id].headers))
            return "grpc-status" not in again.answers[stream_id].headers

    until(room)


# -- the end of a call, and of a line


def test_calls_that_end_in_the_breath_in_which_they_began_cost_the_line_nothing(daemon: Daemon) -> None:
    beginnings: list[Callable[[Wire], int]] = [
        lambda wire: wire.call(HEALTH, headers={":method": "GET"}, end=False, flush=False),
        lambda wire: wire.call(HEALTH, headers={"content-type": "text/html"}, end=False, flush=False),
        lambda wire: wire.call(HEALTH, EMPTY, flush=False),
        lambda wire: wire.call(HEALTH, EMPTY, end=False, flush=False),
        lambda wire: wire.call(RUN_STREAM, headers=bearer(daemon), end=False, flush=False),
        lambda wire: wire.call("/no", end=False, flush=False),
    ]
    with line(daemon) as wire:
        for begin in beginnings:
            stream_id = begin(wire)
            wire.http2.reset_stream(stream_id)
            wire.flush()
            # Frames for a call that is over come late rather than wrong.
            wire.raw(WindowUpdateFrame(stream_id, window_increment=1).serialize())
            wire.raw(RstStreamFrame(stream_id).serialize())
            assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0


def test_data_after_its_end_resets_a_call_and_no_other(daemon: Daemon) -> None:
    with line(daemon) as wire:
        stream_id = wire.call(WATCH, EMPTY)
        wire.raw(DataFrame(stream_id, data=b"more").serialize())
        wire.until(lambda: wire.answers[stream_id].reset == ErrorCodes.STREAM_CLOSED)
        assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0


def test_too_much_room_for_one_call_resets_it_and_no_other(daemon: Daemon) -> None:
    with line(daemon) as wire:
        stream_id = wire.call(WATCH, EMPTY)
        wire.raw(WindowUpdateFrame(stream_id, window_increment=2**31 - 1).serialize())
        wire.until(lambda: wire.answers[stream_id].reset == ErrorCodes.FLOW_CONTROL_ERROR)
        assert wire.answer(wire.call(HEALTH, EMPTY)).status == 0


def test_who_says_goodbye_still_gets_its_answers(daemon: Daemon) -> None:
    with line(daemon, window=0, reads=False) as wire:
        stream_id = wire.call(REFLECTION, DESCRIBE)
        wire.raw(GoAwayFrame(0).serialize())
        wire.http2.increment_flow_control_window(MEBIBYTE, stream_id)
        wire.flush()
        assert wire.answer(stream_id).status == 0
        assert wire.hung_up() is None


def test_a_call_begun_after_a_goodbye_is_refused_and_may_be_made_again(daemon: Daemon) -> None:
    with line(daemon) as wire:
        wire.call(WATCH, EMPTY)
        wire.raw(GoAwayFrame(0).serialize())
        assert wire.answer(wire.call(HEALTH, EMPTY)).reset == ErrorCodes.REFUSED_STREAM


def test_a_daemon_that_stops_ends_every_call_with_a_word(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon({"default": [{"do": "endless", "text": "on ", "delay_ms": 5}]}).start()
    sent = daemon.send("for ever")
    attach = framed(pb.AttachRunRequest(run_id=sent["run_id"]).SerializeToString())
    with line(daemon) as wire, line(daemon, window=0) as unread, line(daemon) as idle:
        watching = wire.call(WATCH, EMPTY)
        silent = wire.call(HEALTH, end=False)
        following = wire.call(f"/{SERVICE}/AttachRun", attach, headers=bearer(daemon))
        wire.until(lambda: bool(wire.answers[following].body and wire.answers[watching].body))
        held = unread.call(f"/{SERVICE}/AttachRun", attach, headers=bearer(daemon))
        unread.until(lambda: bool(unread.answers[held].headers))
        assert daemon.stop() == 0
        assert wire.answer(following).code == "daemon_stopping"
        assert wire.answer(silent).status == GrpcStatus.UNAVAILABLE
        assert wire.answer(watching).status == 0
        last = health_pb2.HealthCheckResponse.FromString(wire.answers[watching].body[-2:])
        assert last.status == health_pb2.HealthCheckResponse.NOT_SERVING
        assert unread.answer(held).status == GrpcStatus.UNAVAILABLE
        assert wire.hung_up() == unread.hung_up() == idle.hung_up() == ErrorCodes.NO_ERROR
    assert troubles(daemon) == []


def test_lines_that_break_off_leave_nothing_behind(daemon: Daemon) -> None:
    session_id = daemon.send("hello")["session_id"]
    attach = framed(pb.AttachSessionRequest(session_id=session_id).SerializeToString())
    for number in range(40):
        wire = line(daemon, window=number % 2)
        wire.call(f"/{SERVICE}/AttachSession", attach, headers=bearer(daemon))
        wire.call(RUN_STREAM, headers=bearer(daemon), end=False)
        wire.call(ROUTE, struct.pack(">BI", 0, 1000) + b"half", headers=bearer(daemon), end=False)
        wire.call(WATCH, EMPTY)
        if number % 3 == 0:
            wire.raw(HeadersFrame(99, data=b"\x82").serialize()[:-1])
        if number % 4 == 0:
            # It ends without a word of its end.
            wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        wire.close()

    def every_place_is_free() -> bool:
        with line(daemon) as wire:
            calls = [wire.call(f"/{SERVICE}/AttachSession", attach, headers=bearer(daemon)) for _ in range(PLACES)]
            wire.until(lambda: all(wire.answers[call].headers for call in calls))
            return not any("grpc-status" in wire.answers[call].headers for call in calls)

    until(every_place_is_free)


def test_lines_that_never_speak_hold_up_nobody(daemon: Daemon) -> None:
    with ExitStack() as stack:
        for _ in range(300):
            stack.enter_context(Raw(daemon, b""))
        until(lambda: handles(daemon) >= 300)
        assert healthy(daemon)


# -- anything


def some_frames() -> st.SearchStrategy[bytes]:
    """Frames with any head, some of them as they should be."""
    stream = st.sampled_from([0, 1, 2, 3, 5, 7, 2**31 - 1])
    wild = st.builds(
        lambda kind, flags, stream, body: (
            struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
        ),
        st.integers(0, 12),
        st.integers(0, 255),
        stream,
        st.binary(max_size=64),
    )
    proper = st.sampled_from(
        [
            PingFrame(0).serialize(),
            SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 0}).serialize(),
            SettingsFrame(0, settings={SettingsFrame.INITIAL_WINDOW_SIZE: 2**31 - 1}).serialize(),
            WindowUpdateFrame(1, window_increment=5).serialize(),
            RstStreamFrame(1).serialize(),
            RstStreamFrame(3).serialize(),
            DataFrame(1, data=EMPTY, flags=["END_STREAM"]).serialize(),
            DataFrame(3, data=DESCRIBE).serialize(),
            GoAwayFrame(0).serialize(),
        ]
    )
    return st.lists(wild | proper, max_size=12).map(b"".join)


def a_conversation() -> bytes:
    """What a proper caller sends."""
    http2 = H2Connection(CONFIG)
    http2.initiate_connection()
    for path, body in ((HEALTH, EMPTY), (REFLECTION, DESCRIBE), (WATCH, EMPTY), (SESSIONS, EMPTY), ("/no", EMPTY)):
        stream_id = http2.get_next_available_stream_id()
        http2.send_headers(stream_id, head(path, {"grpc-timeout": "1S"}))
        http2.send_data(stream_id, body, end_stream=path != REFLECTION)
    http2.reset_stream(5)
    return http2.data_to_send()


CONVERSATION = a_conversation()


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A proper conversation in which something was changed, lost, doubled or put in."""
    data = bytearray(CONVERSATION)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(["change", "lose", "double", "put in"])):
            case "change":
                data[place : place + 1] = draw(st.binary(min_size=1, max_size=1))
            case "lose":
                del data[place : place + draw(st.integers(1, 30))]
            case "double":
                data[place:place] = data[place : place + draw(st.integers(1, 60))]
            case _:
                data[place:place] = draw(some_frames())
    return bytes(data)


def test_nothing_that_is_sent_breaks_the_door(daemon: Daemon) -> None:
    @settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
    @given(data=mutated() | some_frames().map(lambda frames: CONVERSATION + frames), cut=st.integers(1, 3))
    def throw(data: bytes, cut: int) -> None:
        with Raw(daemon, b"") as raw:
            size = max(1, len(data) // cut)
            for start in range(0, len(data), size):
                raw.send(data[start : start + size])
        assert healthy(daemon), data

    throw()


# -- what the tests need


class Raw:
    """A socket, and nothing that knows a protocol."""

    def __init__(self, daemon: Daemon, opening: bytes) -> None:
        host, _, port = address(daemon).rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self.send(opening)

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except ConnectionError:
            return

    def fill(self, data: bytes) -> None:
        """Send until nobody takes it any more."""
        self._socket.settimeout(1)
        try:
            while True:
                self._socket.sendall(data)
        except (TimeoutError, ConnectionError):
            return

    def ended_with(self) -> int | None:
        """Read to the end, and return the reason in the last frame."""
        got = b""
        try:
            while data := self._socket.recv(65536):
                got += data
        except ConnectionResetError:
            pass
        reason = None
        while got:
            length = int.from_bytes(got[:3], "big")
            if got[3] == GoAwayFrame.type:
                reason = int.from_bytes(got[13:17], "big")
            got = got[9 + length :]
        return reason
