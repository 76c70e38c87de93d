"""What `scripts/setup` installs is what was locked, byte for byte."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PINNED = re.search(r"^UV_PINNED=(.+)$", (ROOT / "scripts" / "setup").read_text(), re.MULTILINE)[1]  # type: ignore[index]


def set_up_with_a_wheel_of_our_own(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the set-up where the only uv to be had has the right name and version, and other content."""
    wheels = folder / "wheels"
    wheels.mkdir()
    dist = f"uv-{PINNED}.dist-info"
    with zipfile.ZipFile(wheels / f"uv-{PINNED}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"uv-{PINNED}.data/scripts/uv", "#!/bin/sh\ntouch was-run\n")
        wheel.writestr(f"{dist}/METADATA", f"Metadata-Version: 2.1\nName: uv\nVersion: {PINNED}\n")
        wheel.writestr(f"{dist}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{dist}/RECORD", "")
    tree = folder / "tree"
    for name in ("pyproject.toml", "uv.lock", "scripts/setup", "scripts/uv.txt", "src/palyra/core/version.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    programs = folder / "bin"
    programs.mkdir()
    # A base Python with pip, and no uv to be found.
    (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    environ = {"PATH": f"{programs}:/usr/bin:/bin", "HOME": str(folder), "PIP_NO_INDEX": "1"}
    environ |= {"PIP_FIND_LINKS": str(wheels), "LANG": os.environ.get("LANG", "C.UTF-8")}
    return subprocess.run(
        ["bash", "scripts/setup", "run"], cwd=tree, env=environ, capture_output=True, text=True, check=False
    )


def test_a_uv_with_another_hash_is_not_installed(tmp_path: Path) -> None:
    done = set_up_with_a_wheel_of_our_own(tmp_path)
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr, done.stderr
    assert not (tmp_path / "tree" / "was-run").exists()
    assert not (tmp_path / "tree" / ".venv").exists()


def test_the_version_of_uv_is_the_one_whose_hashes_are_known() -> None:
    assert f"\nuv=={PINNED} " in (ROOT / "scripts" / "uv.txt").read_text()


def test_everything_that_is_installed_has_a_hash_also_what_builds_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = {one["name"]: one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    for name, package in packages.items():
        files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else ())]
        assert name == "palyra" or files, name
        assert all(file["hash"].startswith("sha256:") for file in files), name
    # Built without isolation, with what the lock holds: an isolated build would fetch its tools by name alone.
    assert project["tool"]["uv"]["no-build-isolation-package"] == ["palyra"]
    for required in project["build-system"]["requires"]:
        name, _, version = required.partition("==")
        assert packages[name]["version"] == version
        assert required in project["dependency-groups"]["build"]
