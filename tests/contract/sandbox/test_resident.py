"""Programs that stay see the machine as its owner does, and Palyra's folders neither there nor elsewhere."""

import asyncio
import resource
from pathlib import Path

from palyra.sandbox.base import Tier
from palyra.sandbox.descriptors import INHERITED
from palyra.sandbox.resident import Cover, Staying, start
from tests.contract.sandbox.conftest import SECRET, require


async def test_the_way_to_a_covered_folder_can_not_be_exchanged(tmp_path: Path) -> None:
    await asyncio.to_thread(require, Tier.STRICT)
    home = tmp_path / "share/palyra"
    home.mkdir(parents=True)
    (home / "token").write_text(SECRET)
    command = (
        f"cd {tmp_path}; mv share other; mv share/palyra share/other; cat share/palyra/token */*/token > seen;"
        " mkdir -p share/palyra; echo x > share/palyra/token; echo done > share/work"
    )
    resident = await start(Staying(("/bin/bash", "-c", command), cover=Cover(folders=(home,))), most_bytes=1024)
    try:
        await resident.ended()
    finally:
        resident.stop()
    assert (home / "token").read_text() == SECRET
    assert (tmp_path / "seen").read_text() == ""
    assert (tmp_path / "share/work").read_text() == "done\n", "around it, programs work"


async def test_a_program_begins_with_the_descriptors_that_the_daemon_was_started_with(tmp_path: Path) -> None:
    """The daemon raises its own limit for its clients; programs may fail with a higher one."""
    await asyncio.to_thread(require, Tier.OFF)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    said = tmp_path / "said"
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        resident = await start(
            Staying(("/bin/bash", "-c", f"ulimit -Sn > {said}; ulimit -Hn >> {said}")), most_bytes=1024
        )
        try:
            await resident.ended()
        finally:
            resident.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert said.read_text().split() == [str(INHERITED), str(hard)]
