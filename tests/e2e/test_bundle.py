"""The support bundle: there when things are broken, and without secrets or what was said."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

from tests.e2e.conftest import NewDaemon


def bundle(home: Path, file: Path) -> dict[str, str]:
    environ = {**os.environ, "PALYRA_HOME": str(home)}
    command = [sys.executable, "-m", "palyra", "doctor", "--bundle", str(file)]
    subprocess.run(command, env=environ, capture_output=True, timeout=60, check=False)
    with tarfile.open(file) as tar:
        return {
            Path(entry.name).name: content.read().decode()
            for entry in tar.getmembers()
            if (content := tar.extractfile(entry)) is not None
        }


def test_a_bundle_holds_what_helps_and_no_secret(new_sqlite_daemon: NewDaemon, tmp_path: Path) -> None:
    daemon = new_sqlite_daemon()
    daemon.start()
    daemon.finished(daemon.send("the crown is under the third stone")["run_id"])
    parts = bundle(daemon.home.path, tmp_path / "b.tar.gz")
    assert '"checks"' in parts["doctor.json"]
    assert '"schema"' in parts["status.json"]
    assert "ready at" in parts["log.ndjson"]
    whole = "".join(parts.values())
    assert daemon.token not in whole
    assert "third stone" not in whole
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o777 == 0o600


def test_a_bundle_can_be_made_where_nothing_works(tmp_path: Path) -> None:
    parts = bundle(tmp_path / "nothing", tmp_path / "b.tar.gz")
    assert parts["status.json"].startswith("not available")
    assert '"checks"' in parts["doctor.json"]
