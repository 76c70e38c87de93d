"""HTTP/2 by the `h2` package, with bounds where it has none.

What is changed are private parts of the package. Where a new version of it has them otherwise, the bounds would be gone
without a word: the tests on the wire try each of them.
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

MOST_CALLS = 2_048
MOST_HEADER_BYTES = 16 * 1024
MOST_TABLE_BYTES = 4 * 1024

# Of a head only what we look for counts, and that is looked at where it is used; nothing of it is passed on.
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
    """What has arrived, without that which would be refused anyway: the package looks at it when it is all there."""

    def __next__(self) -> Frame:
        if len(self._data) >= 3:
            self._validate_frame_length(int.from_bytes(self._data[:3], "big"))
        if self._headers_buffer and sum(len(part.data) for part in self._headers_buffer) > MOST_HEADER_BYTES:
            raise DenialOfServiceError("A head is too long.")
        return super().__next__()


class _Heads(Decoder):
    """What reads heads; they change the size of their table twice at most, as the standard has it."""

    def decode(self, data: bytes, raw: bool = False) -> Iterable[HeaderTuple]:
        self._changes = 0
        return super().decode(data, raw)

    def _update_encoding_context(self, data: bytes | memoryview) -> int:
        self._changes += 1
        if self._changes > 2:
            raise HPACKDecodingError("The size of the table changes too often.")
        return super()._update_encoding_context(data)


class Http2(H2Connection):
    """The server's side of a connection."""

    MAX_CLOSED_STREAMS = 64
    """How many ended calls are remembered, to tell a late frame from a wrong one. A line may carry many in its life."""

    def __init__(self) -> None:
        super().__init__(_CONFIG)
        self.decoder = _Heads(max_header_list_size=MOST_HEADER_BYTES)
        self.incoming_buffer = _Frames(server=True)
        self.local_settings = Settings(
            client=False,
            initial_values={
                SettingCodes.MAX_CONCURRENT_STREAMS: MOST_CALLS,
                SettingCodes.MAX_HEADER_LIST_SIZE: MOST_HEADER_BYTES,
            },
        )

    def _receive_settings_frame(self, frame: SettingsFrame) -> tuple[list[Frame], list[Event]]:
        # Those that mean nothing would be kept for good, and a larger table be filled with all that is ever sent.
        wanted = {code: value for code, value in frame.settings.items() if code in _KNOWN}
        if (table := wanted.get(SettingCodes.HEADER_TABLE_SIZE)) is not None:
            wanted[SettingCodes.HEADER_TABLE_SIZE] = min(table, MOST_TABLE_BYTES)
        frame.settings = wanted
        return super()._receive_settings_frame(frame)

    def _receive_goaway_frame(self, frame: GoAwayFrame) -> tuple[list[Frame], list[Event]]:
        # Who begins no further calls may still wait for answers; the package would not say another word.
        return [], [ConnectionTerminated()]
