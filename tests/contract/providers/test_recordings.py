"""What a recorded answer comes to, in each dialect, however the network cuts it."""

from collections.abc import Iterator

import pytest

from tests.contract.providers.conftest import Asking, said
from tests.contract.providers.wire import Heard, Wire, heard, wires
from tests.support.model_server import ModelServer, stream


def recordings() -> Iterator[object]:
    for wire in wires():
        for name, expected in wire.turns.items():
            yield pytest.param(wire, name, expected, id=f"{wire.name}-{name}")


@pytest.fixture
def wire(request: pytest.FixtureRequest) -> Wire:
    """The dialect of the recording."""
    found: Wire = request.param
    return found


every_recording = pytest.mark.parametrize(("wire", "name", "expected"), list(recordings()), indirect=["wire"])


@every_recording
async def test_a_recorded_answer_means_what_it_should(
    wire: Wire, name: str, expected: Heard, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.recording(name)))

    assert heard(await said(asking())) == expected


@every_recording
async def test_it_means_the_same_byte_by_byte(
    wire: Wire, name: str, expected: Heard, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.recording(name), cut=1))

    assert heard(await said(asking())) == expected


@every_recording
async def test_it_means_the_same_with_other_line_breaks(
    wire: Wire, name: str, expected: Heard, server: ModelServer, asking: Asking
) -> None:
    server.play(stream(wire.recording(name).replace(b"\n", b"\r\n"), cut=7))

    assert heard(await said(asking())) == expected
