"""HTTP/2 by the `h2` package, with limits where it has none.

This overrides private parts of the package. If a new version changed them, the limits would silently disappear: the
wire tests check each of them.
"""

from collections.abc import Iterable

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, Event
from h2.exceptions import DenialOfServiceError
from h2.frame_buffer import FrameBuffer
from h2.settings import SettingCodes, Settings
from hpack.exceptions import HPACKDecodingError
from hpack.hpack import Decoder
from hpack.struct import HeaderTuple
from hyperframe.frame import Frame, GoAwayFrame, SettingsFrame

MAX_CALLS = 2_048
MAX_HEADER_BYTES = 16 * 1024
MAX_TABLE_BYTES = 4 * 1024

# Only known headers are used, and they are checked where they are used; none is passed on.
_CONFIG = H2Configuration(
    client_side=False,
    header_encoding=None,
    validate_inbound_headers=False,
    normalize_inbound_headers=False,
    validate_outbound_headers=False,
    normalize_outbound_headers=False,
)
_KNOWN = frozenset(SettingCodes)


class _Frames(FrameBuffer):
    """Buffers frames, and rejects early what would be refused anyway: the package only checks complete frames."""

    def __next__(self) -> Frame:
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        if self._headers_buffer and sum(len(part.data) for part in self._headers_buffer) > MAX_HEADER_BYTES:
            raise DenialOfServiceError("The headers are too long.")
        return super().__next__()


class _Heads(Decoder):
    """Decodes headers; they may change the table size at most twice, as the standard says."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        self._changes = 0
        return super().decode(data, raw)

    def _update_encoding_context(self, data: bytes | memoryview) -> int:
        self._changes += 1
        if self._changes > 2:
            raise HPACKDecodingError("The size of the header table changes too often.")
        return super()._update_encoding_context(data)


class Http2(H2Connection):
    """The server's side of a connection."""

    MAX_CLOSED_STREAMS = 64
    """How many ended calls are remembered, to tell a late frame from a wrong one. A connection may have many."""

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        self.decoder = _Heads(max_header_list_size=MAX_HEADER_BYTES)
        self.incoming_buffer = _Frames(server=True)
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MAX_CALLS,
                SettingCodes.MAX_HEADER_LIST_SIZE: MAX_HEADER_BYTES,
            },
        )

    def _receive_settings_frame(self, frame: SettingsFrame) -> tuple[list[Frame], list[Event]]:
        # Unknown settings would be kept forever, and a larger table would be filled with everything that is ever sent.
        values = {code: value for code, value in frame.settings.items() if code in _KNOWN}
        if (table := values.get(SettingCodes.HEADER_TABLE_SIZE)) is not None:
            values[SettingCodes.HEADER_TABLE_SIZE] = min(table, MAX_TABLE_BYTES)
        frame.settings = values
        return super()._receive_settings_frame(frame)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        # A client that begins no further calls may still wait for answers; the package would send nothing more.
        return [], [ConnectionTerminated()]
