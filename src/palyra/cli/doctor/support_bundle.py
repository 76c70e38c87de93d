"""A bundle for support: the doctor's results, the settings, the log. No secrets and no messages."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from palyra.cli.daemon.logs import last_lines
from palyra.cli.doctor.check import Check
from palyra.cli.options import Invocation
from palyra.config import effective
from palyra.core.errors import PalyraError
from palyra.core.text.redaction import redact
from palyra.core.version import VERSION
from palyra.journal import stats
from palyra.journal.atomic_file import atomic_file
from palyra.journal.snapshot import open_snapshot

LOG_LINES = 2_000

_encode = msgspec.json.Encoder()


def write_bundle(invocation: Invocation, path: Path, checks: list[Check]) -> list[str]:
    """Write the bundle, whole or not at all, for its owner only; return the names of its files."""
    parts = {
        "version.txt": VERSION,
        "doctor.json": _json({"checks": checks}),
        "settings.json": _section_text(lambda: _json(effective(invocation.settings))),
        "status.json": _section_text(lambda: _json(invocation.client.status())),
        "journal.json": _section_text(lambda: _journal(invocation)),
        "log.ndjson": _section_text(lambda: "\n".join(last_lines(invocation.home.log, LOG_LINES))),
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w:gz") as tar:
        for name, text in parts.items():
            data = redact(text).encode()
            entry = tarfile.TarInfo(f"palyra-bundle/{name}")
            entry.size, entry.mode = len(data), 0o600
            tar.addfile(entry, io.BytesIO(data))
    with atomic_file(path) as file:
        file.write(archive.getvalue())
    return list(parts)


def _journal(invocation: Invocation) -> str:
    with open_snapshot(invocation.home, invocation.settings) as conn:
        return _json(stats.gather(conn, invocation.home))


def _section_text(tell: Callable[[], str]) -> str:
    """Return a part's content, or the error that it failed with: bundles are made when things are broken."""
    try:
        return tell()
    except (PalyraError, OSError) as error:
        return f"not available: {error}"


def _json(value: object) -> str:
    return msgspec.json.format(_encode.encode(value), indent=2).decode()
