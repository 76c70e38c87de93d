"""A plugin is what was installed, or it is not used."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from palyra.core.errors import PalyraError
from palyra.home import Home
from palyra.tools.plugins import installed
from palyra.tools.plugins.capabilities import difference
from palyra.tools.plugins.current import CurrentPlugins
from palyra.tools.plugins.installed import (
    FaultyPlugin,
    Plugin,
    PluginChanged,
    PluginCopy,
    PluginFolderMissing,
    PluginFolderNotAllowed,
    PluginMismatch,
    PluginNotFound,
    PluginNotReadable,
)
from tests.support import modules
from tests.support.plugins import AT, TOOL, a_plugin, installed_from, manifest

ASKS = TOOL + '[[folders]]\nname = "data"\naccess = "write"\npurpose = "the results"\n'


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def names(home: Home) -> list[str]:
    return [tool.spec.name for tool in CurrentPlugins(home).tools()]


def test_an_installed_plugin_is_there_and_private(home: Home, tmp_path: Path) -> None:
    plugin = installed_from(home, a_plugin(tmp_path / "p"))
    assert installed.load(home, "probe") == plugin
    assert plugin.module() == modules.ECHOES
    assert names(home) == ["probe.run"]
    assert home.path.stat().st_mode & 0o077 == 0
    assert home.plugins.stat().st_mode & 0o077 == 0


def test_without_plugins_there_are_no_tools(home: Home) -> None:
    assert names(home) == []


def test_what_was_installed_no_longer_depends_on_where_it_came_from(home: Home, tmp_path: Path) -> None:
    folder = a_plugin(tmp_path / "p")
    installed_from(home, folder)
    (folder / "probe.wasm").write_bytes(b"other")
    assert installed.load(home, "probe").module() == modules.ECHOES


def test_an_upgrade_takes_the_place_of_what_was_there_and_leaves_nothing_of_it(home: Home, tmp_path: Path) -> None:
    before = installed_from(home, a_plugin(tmp_path / "p"))
    text = manifest(modules.TRAPS, version="2.0.0")
    after = installed_from(home, a_plugin(tmp_path / "p", modules.TRAPS, text=text))
    assert installed.load(home, "probe") == after
    assert after.digest != before.digest
    assert sorted(path.name for path in home.plugins.iterdir()) == sorted(["probe.json", after.pin.place])


def test_a_removed_plugin_is_gone(home: Home, tmp_path: Path) -> None:
    installed_from(home, a_plugin(tmp_path / "p"))
    installed.remove(home, "probe")
    assert list(home.plugins.iterdir()) == []
    for name in ("probe", "../probe", ""):
        with pytest.raises(PluginNotFound):
            installed.load(home, name)
        with pytest.raises(PluginNotFound):
            installed.remove(home, name)


@pytest.mark.parametrize("file", ["probe.wasm", "plugin.toml"])
@pytest.mark.parametrize("how", ["append", "delete", "link"])
def test_a_file_that_differs_from_its_pin_is_refused(home: Home, tmp_path: Path, file: str, how: str) -> None:
    plugin = installed_from(home, a_plugin(tmp_path / "p"))
    path = plugin.path / file
    content = path.read_bytes()
    path.unlink()
    if how == "append":
        path.write_bytes(content + b"\n")
    elif how == "link":
        (tmp_path / "same").write_bytes(content)
        path.symlink_to(tmp_path / "same")
    with pytest.raises(PluginChanged) as refused:
        plugin.module()
    assert file in refused.value.detail
    assert "install the plugin again" in refused.value.detail.lower()


def test_a_plugin_with_a_changed_manifest_is_left_out_and_the_others_stay(home: Home, tmp_path: Path) -> None:
    installed_from(home, a_plugin(tmp_path / "p"))
    bad = installed_from(home, a_plugin(tmp_path / "q", name="other"))
    (bad.path / "plugin.toml").write_text(manifest(name="other", rest=TOOL + 'risk = "low"'))
    current = CurrentPlugins(home)
    assert [tool.spec.name for tool in current.tools()] == ["probe.run"]
    [faulty] = current.now.faulty
    assert (faulty.name, faulty.error.code) == ("other", "plugin_changed")


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\xff", b'{"place": "../.."}', b"x" * 100_000])
def test_a_pin_that_is_none_is_refused(home: Home, tmp_path: Path, content: bytes) -> None:
    installed_from(home, a_plugin(tmp_path / "p"))
    (home.plugins / "probe.json").write_bytes(content)
    assert [type(one) for one in installed.load_all(home)] == [FaultyPlugin]
    installed.remove(home, "probe")


def test_a_pin_can_not_point_elsewhere(home: Home, tmp_path: Path) -> None:
    installed_from(home, a_plugin(tmp_path / "p"))
    pin = json.loads((home.plugins / "probe.json").read_text())
    (home.plugins / "probe.json").write_text(json.dumps({**pin, "place": "../../p"}))
    with pytest.raises(PluginChanged):
        installed.load(home, "probe")
    (home.plugins / "other.json").write_text(json.dumps(pin))
    with pytest.raises(PluginChanged):
        installed.load(home, "other")


def test_what_is_no_plugin_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(PluginNotReadable):
        installed.read_offered_plugin(tmp_path)
    folder = a_plugin(tmp_path / "p")
    (folder / "probe.wasm").unlink()
    with pytest.raises(PluginNotReadable):
        installed.read_offered_plugin(folder)
    (folder / "probe.wasm").symlink_to("/etc/passwd")
    with pytest.raises(PluginNotReadable):
        installed.read_offered_plugin(folder)


def test_a_pipe_does_not_hold_the_installation(tmp_path: Path) -> None:
    folder = a_plugin(tmp_path / "p")
    (folder / "probe.wasm").unlink()
    os.mkfifo(folder / "probe.wasm")
    with pytest.raises(PluginNotReadable):
        installed.read_offered_plugin(folder)


def test_a_module_that_the_manifest_does_not_describe_is_not_installed(tmp_path: Path) -> None:
    folder = a_plugin(tmp_path / "p")
    (folder / "probe.wasm").write_bytes(modules.TRAPS)
    with pytest.raises(PluginMismatch) as refused:
        installed.read_offered_plugin(folder)
    assert "put the new digest into the manifest" in refused.value.detail


# -- folders


@pytest.fixture
def asking(tmp_path: Path) -> Path:
    return a_plugin(tmp_path / "p", text=manifest(rest=ASKS))


def test_a_folder_must_be_given_and_stays_given(home: Home, tmp_path: Path, asking: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(PluginFolderMissing) as needed:
        installed_from(home, asking)
    assert "--folder data=" in needed.value.detail
    plugin = installed_from(home, asking, given={"data": str(data)})
    assert plugin.pin.folders == {"data": str(data)}
    again = installed.folders_for(home, plugin.manifest, {}, before=plugin.pin.folders)
    assert again == plugin.pin.folders


def test_a_folder_that_nobody_asked_for_is_not_given(home: Home, tmp_path: Path) -> None:
    with pytest.raises(PluginFolderMissing) as refused:
        installed_from(home, a_plugin(tmp_path / "p"), given={"data": str(tmp_path)})
    assert "needs no folder" in refused.value.detail


def test_palyras_own_home_is_never_given(home: Home, tmp_path: Path, asking: Path) -> None:
    home.workspace.mkdir(parents=True)
    home.plugins.mkdir()
    (tmp_path / "link").symlink_to(home.path)
    for path in (home.path, home.plugins, tmp_path, Path("/"), tmp_path / "link"):
        with pytest.raises(PluginFolderNotAllowed):
            installed_from(home, asking, given={"data": str(path)})
    for text in ("relative", str(tmp_path / "missing"), str(asking / "plugin.toml")):
        with pytest.raises(PluginFolderNotAllowed):
            installed_from(home, asking, given={"data": text})
    assert installed_from(home, asking, given={"data": str(home.workspace)}).pin.folders["data"] == str(home.workspace)


def test_a_folder_that_holds_the_link_to_the_home_is_not_given(home: Home, tmp_path: Path, asking: Path) -> None:
    """A plugin that may change the folder could put another home in its place."""
    data = tmp_path / "data"
    data.mkdir(exist_ok=True)
    (data / ".palyra").symlink_to(home.path)
    with pytest.raises(installed.PluginFolderNotAllowed, match="the link to Palyra's own home"):
        installed_from(Home(data / ".palyra"), asking, given={"data": str(data)})


def test_another_folder_makes_another_plugin_of_it(home: Home, tmp_path: Path, asking: Path) -> None:
    found: list[Plugin] = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        found.append(installed_from(home, asking, given={"data": str(tmp_path / name)}))
    assert found[0].digest != found[1].digest


def test_an_upgrade_is_compared_by_what_it_may_do(home: Home, tmp_path: Path, asking: Path) -> None:
    before = installed_from(home, a_plugin(tmp_path / "q"))
    (tmp_path / "data").mkdir()
    source = installed.read_offered_plugin(asking)
    folders = installed.folders_for(home, source.manifest, {"data": str(tmp_path / "data")}, before={})
    changes = difference(source.manifest, folders, before)
    assert changes.added == (
        "tool probe.run: medium risk, may change its folders",
        f"folder data: may change {tmp_path / 'data'} (the results)",
    )
    assert changes.removed == ("tool probe.run: low risk, changes nothing", "no files")
    assert "no network" in changes.unchanged


def test_a_folder_that_can_not_be_written_is_told_of(home: Home, tmp_path: Path) -> None:
    home.path.write_text("this is no folder")
    with pytest.raises(PalyraError) as refused:
        installed.install(home, installed.read_offered_plugin(a_plugin(tmp_path / "p")), {}, at=AT)
    assert refused.value.code == "plugin_folder_not_writable"


def test_a_copy_is_of_one_version_while_others_take_its_place(home: Home, tmp_path: Path) -> None:
    def upgrade(number: int) -> Plugin:
        text = manifest(version=f"1.0.{number}", rest=TOOL)
        return installed_from(home, a_plugin(tmp_path / f"p{number}", text=text))

    upgrade(0)
    seen: set[str] = set()
    with ThreadPoolExecutor(1) as pool:
        upgrading = pool.submit(lambda: [upgrade(number) for number in range(1, 60)])
        while not upgrading.done():
            [copy] = installed.copies(home)
            assert isinstance(copy, PluginCopy), copy
            copied = Home(tmp_path / "copied" / str(len(seen)))
            for name, content in copy.files.items():
                (copied.plugins / name).parent.mkdir(parents=True, exist_ok=True)
                (copied.plugins / name).write_bytes(content)
            plugin = installed.load(copied, "probe")
            assert plugin.module() == modules.ECHOES
            seen.add(plugin.manifest.version)
        upgrading.result()
    assert seen
