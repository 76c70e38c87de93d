"""Names of tools on their way to a provider and back."""

from palyra.providers.dialects.tool_names import ToolNames


def test_a_name_goes_out_as_providers_take_it_and_comes_back() -> None:
    names = ToolNames(["files.read", "time.now", "plain_one"])

    assert [names.out(tool) for tool in ("files.read", "time.now", "plain_one")] == [
        "files_read",
        "time_now",
        "plain_one",
    ]
    assert names.back("files_read") == "files.read"
    assert names.back("plain_one") == "plain_one"


def test_a_name_that_was_never_told_comes_back_as_it_is() -> None:
    assert ToolNames(["files.read"]).back("rm.rf") == "rm.rf"


def test_who_would_be_called_the_same_is_told_apart() -> None:
    names = ToolNames(["files.read", "files_read", "files/read"])

    assert names.out("files_read") == "files_read"
    assert len({names.out(tool) for tool in ("files.read", "files_read", "files/read")}) == 3
    assert names.back(names.out("files/read")) == "files/read"


def test_a_name_does_not_depend_on_the_others_unless_they_collide() -> None:
    alone, among = ToolNames(["mcp.x y z"]), ToolNames(["a.b", "mcp.x y z", "z" * 100])

    assert alone.out("mcp.x y z") == among.out("mcp.x y z") == "mcp_x_y_z"


def test_the_conversation_does_not_rename_what_is_offered() -> None:
    names = ToolNames(["files.read"], ["files_read", "gone.tool"])

    assert names.out("files.read") == "files_read"
    assert names.out("files_read") != "files_read"
    assert names.out("gone.tool") == "gone_tool"


def test_long_and_odd_names_fit() -> None:
    tools = ["x" * 200, "x" * 201, "7up", "-dash", "", "ünïcödé", "日本", "日木", "a\nb", "\ud800"]
    names = ToolNames(tools)

    out = [names.out(tool) for tool in tools]

    assert len(set(out)) == len(tools)
    assert all(1 <= len(name) <= 64 and name.isascii() and (name[0].isalpha() or name[0] == "_") for name in out)
    assert [names.back(name) for name in out] == tools


def test_somebody_who_guesses_a_name_does_not_take_it() -> None:
    wanted = ToolNames(["a.b", "a/b"]).out("a.b")
    names = ToolNames(["a.b", "a/b", wanted, f"{wanted}_2"])

    assert names.out(wanted) == wanted
    assert len({names.out(tool) for tool in ("a.b", "a/b", wanted, f"{wanted}_2")}) == 4
