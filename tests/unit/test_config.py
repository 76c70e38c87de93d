"""The settings: read from a file and the environment, refused with a reason, shown without their secrets."""

from pathlib import Path

import pytest

from palyra import config
from palyra.config import (
    RENAMED,
    SettingSource,
    changes,
    effective,
    load,
    read,
    references,
    reload,
    settings_hash,
    stray_variables,
    unresolved,
)
from palyra.core.limits import Limits
from palyra.core.mcp import server_address
from palyra.home import Home, choose_home, find_home
from palyra.secret_references import secret_of
from palyra.settings import GatewaySettings, HttpSettings, JournalSettings, RunSettings, Settings, SettingsInvalid
from palyra.settings_tables import TABLES

URL = "postgresql://palyra:s3cret@db.example/palyra"


@pytest.fixture
def place(tmp_path: Path) -> Home:
    return Home(tmp_path)


def written(home: Home, text: str) -> Home:
    home.config.write_text(text)
    return home


def complaint(home: Home, **environ: str) -> str:
    with pytest.raises(SettingsInvalid) as refused:
        load(home, environ=environ)
    return refused.value.detail


# -- reading


def test_without_a_file_everything_has_its_default(place: Home) -> None:
    assert load(place, environ={}) == Settings()


def test_the_file_is_read_and_the_environment_overrides_it(place: Home) -> None:
    written(place, '[http]\nport = 8000\n[runs]\nmax_concurrent = 3\n[model]\nprovider = "scripted"\n')

    settings = load(place, environ={"PALYRA_HTTP_PORT": "9000", "PALYRA_GATEWAY_MAX_STREAMS": "7"})

    assert (settings.http.port, settings.runs.max_concurrent, settings.gateway.max_streams) == (9000, 3, 7)
    assert settings.model.provider == "scripted"


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False), ("1", True), ("0", False)])
def test_a_variable_may_be_yes_or_no(place: Home, text: str, value: bool) -> None:
    assert load(place, environ={"PALYRA_HTTP_ALLOW_REMOTE": text}).http.allow_remote is value


@pytest.mark.parametrize("text", ["none", "null", "123", "true"])
def test_a_variable_for_text_is_taken_as_text(place: Home, text: str) -> None:
    assert load(place, environ={"PALYRA_WORKSPACE_ROOT": text}).workspace.root == text


def test_an_empty_variable_overrides_nothing(place: Home) -> None:
    written(place, "[http]\nport = 8000\n")
    assert load(place, environ={"PALYRA_HTTP_PORT": ""}).http.port == 8000


def test_each_value_has_a_source(place: Home) -> None:
    written(place, "[http]\nport = 8000\n[limits]\ntool_timeout_ms = 1\n")

    sources = read(place, environ={"PALYRA_LIMITS_TOOL_TIMEOUT_MS": "2"}).sources

    assert sources["http.port"] is SettingSource.FILE
    assert sources["limits.tool_timeout_ms"] is SettingSource.ENVIRONMENT
    assert sources["http.host"] is SettingSource.DEFAULT
    assert set(sources) == set(effective(Settings()))


# -- what is wrong


def test_an_unknown_key_is_refused_with_the_nearest_name(place: Home) -> None:
    said = complaint(written(place, "[http]\nprot = 1\n"))
    assert said == f"{place.config}: unknown key 'prot' in section [http]. Did you mean 'port'?"


def test_an_unknown_section_is_refused_with_the_nearest_name(place: Home) -> None:
    assert "unknown section [modell]. Did you mean 'model'?" in complaint(written(place, "[modell]\n"))


def test_a_key_outside_of_any_section_is_refused(place: Home) -> None:
    assert "http is a section. Write [http]" in complaint(written(place, "http = 1\n"))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[http]\nport = 70000", "http.port is not valid: Expected `int` <= 65535."),
        ("[http]\nport = '80'", "http.port is not valid: Expected `int | null`, got `str`."),
        ("[runs]\nmax_concurrent = 0", "runs.max_concurrent is not valid: Expected `int` >= 1."),
        ("[limits]\ntool_timeout_ms = -1", "limits.tool_timeout_ms is not valid: a limit cannot be negative."),
        ("[http]\nallow_remote = 'yes'", "http.allow_remote is not valid: Expected `bool`, got `str`."),
    ],
)
def test_a_wrong_value_is_named_with_its_key(place: Home, text: str, why: str) -> None:
    said = complaint(written(place, text))
    assert said.startswith(f"{place.config}: {why}")
    assert "the default is" in said


def test_a_wrong_variable_is_named(place: Home) -> None:
    assert complaint(place, PALYRA_HTTP_PORT="much").startswith("PALYRA_HTTP_PORT: http.port is not valid")


@pytest.mark.parametrize("content", [b"[http\n", b"\xff\xfe", b"a = 1\na = 2\n"])
def test_a_file_that_is_no_toml_is_refused(place: Home, content: bytes) -> None:
    place.config.write_bytes(content)
    assert f"{place.config}: cannot be read" in complaint(place)


def test_a_file_that_can_not_be_opened_is_refused(place: Home) -> None:
    place.config.mkdir()
    assert "cannot be read: Is a directory" in complaint(place)


def test_all_problems_are_found_at_once(place: Home) -> None:
    written(place, "[http]\nport = -1\nhots = 1\n[nowhere]\n[runs]\nmax_queued_inputs = 'many'\n")

    found = {problem.key for problem in read(place, environ={"PALYRA_GATEWAY_MAX_STREAMS": "x"}).problems}

    assert found == {"http.port", "http.hots", "nowhere", "runs.max_queued_inputs", "gateway.max_streams"}
    assert "4 more problems" in complaint(place, PALYRA_GATEWAY_MAX_STREAMS="x")


def test_a_variable_that_is_no_setting_is_found() -> None:
    given = {"PALYRA_HTP_PORT": "1", "PALYRA_HOME": "/x", "PALYRA_HTTP_PORT": "1", "PALYRA_OTHER": "", "PATH": ""}

    problems = {problem.where: problem.remedy for problem in stray_variables(given)}

    assert problems == {
        "PALYRA_HTP_PORT": "Did you mean PALYRA_HTTP_PORT?",
        "PALYRA_OTHER": "It has no effect. Remove it.",
    }


# -- doors that others can reach


TLS = "tls_certificate = '/c'\ntls_key = '/k'\n"


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_the_machine_itself_needs_no_word(place: Home, host: str) -> None:
    assert load(written(place, f"[http]\nhost = '{host}'\n"), environ={}).http.host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "127.example.com", "127.0.0.1.example.com", ""])
@pytest.mark.parametrize("half", ["", TLS, "allow_remote = true\n", "tls_key = '/k'\nallow_remote = true\n"])
@pytest.mark.parametrize("door", ["http", "grpc"])
def test_a_host_that_others_reach_needs_tls_and_a_second_word(place: Home, host: str, half: str, door: str) -> None:
    written(place, f"[{door}]\nhost = '{host}'\n" + (half if door == "http" else f"[http]\n{half}"))

    problems = {problem.key: str(problem) for problem in read(place, environ={}).problems}

    assert "http.tls_certificate and http.tls_key" in problems[f"{door}.host"]
    assert "http.allow_remote = true" in problems[f"{door}.host"]


@pytest.mark.parametrize("door", ["http", "grpc"])
def test_a_host_that_others_reach_is_taken_when_both_are_there(place: Home, door: str) -> None:
    written(place, f"[http]\n{TLS}allow_remote = true\n")
    settings = load(place, environ={f"PALYRA_{door.upper()}_HOST": "0.0.0.0"})
    assert getattr(settings, door).host == "0.0.0.0"


def test_half_a_certificate_is_refused(place: Home) -> None:
    assert "must be set together. Set http.tls_key too" in complaint(written(place, "[http]\ntls_certificate = '/c'\n"))


# -- secrets


def test_a_secret_may_stand_in_a_variable(place: Home) -> None:
    written(place, "[journal]\ndatabase_url = 'env:DATABASE'\n")

    settings = load(place, environ={})

    assert effective(settings)["journal.database_url"] == settings.journal.database_url == "env:DATABASE"
    assert secret_of("env:DATABASE", base=place.path, environ={"DATABASE": URL}) == URL


@pytest.mark.parametrize("name", ["{home}/secret", "secret"])
def test_a_secret_may_stand_in_a_file(place: Home, name: str) -> None:
    (place.path / "secret").write_text(f"{URL}\n")

    settings = load(place, environ={"PALYRA_JOURNAL_DATABASE_URL": "file:" + name.format(home=place.path)})

    assert settings.journal.database_url is not None
    assert secret_of(settings.journal.database_url, base=place.path) == URL
    assert "s3cret" not in repr(settings)


@pytest.mark.parametrize(
    ("key", "reference", "why"),
    [
        ("JOURNAL_DATABASE_URL", "vaults:database", "'vaults' is not a kind of secret reference; use env:NAME"),
        (
            "JOURNAL_DATABASE_URL",
            "vault:database",
            "vault:database cannot be used here, because this key is needed to open the vault",
        ),
        ("JOURNAL_DATABASE_URL", "keyring:database", "write it as keyring:SERVICE/NAME"),
        ("VAULT_KEY", "vault:key", "vault:key cannot be used here"),
        ("VAULT_KEY", "ab" * 32, "the key itself must not be in the settings, which are part of every backup"),
    ],
)
def test_a_reference_that_can_not_be_meant_is_refused(place: Home, key: str, reference: str, why: str) -> None:
    said = complaint(place, **{f"PALYRA_{key}": reference})
    assert why in said
    assert "ab" * 32 not in said


@pytest.mark.parametrize("reference", ["env:NOT_THERE", "file:/not/there", "keyring:not/there"])
def test_a_reference_that_leads_nowhere_is_found_when_looked_for(place: Home, reference: str) -> None:
    written(place, f"[journal]\ndatabase_url = '{reference}'\n")
    reading = read(place, environ={"PALYRA_VAULT_KEY": "env:HERE"})

    (problem,) = unresolved(place, reading, environ={"HERE": "s3cret"})

    assert reading.problems == ()
    assert (problem.where, problem.key) == (str(place.config), "journal.database_url")
    assert reference in problem.what
    assert {key: str(found) for key, found in references(reading.settings).items()} == {
        "journal.database_url": reference,
        "vault.key": "env:HERE",
    }


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "postgresql://palyra:***@db.example/palyra"),
        ("postgresql://palyra:s3cret@with@more@db/palyra", "postgresql://palyra:***@db/palyra"),
        ("postgresql://db/palyra?user=x&password=s3cret&a=b", "postgresql://db/palyra?user=x&password=***&a=b"),
        ("host=db password=s3cret user=x", "host=db password=*** user=x"),
        ("host=db password = 's3cret and more' user=x", "host=db password = *** user=x"),
        ("postgresql://db/palyra", "postgresql://db/palyra"),
    ],
)
def test_a_password_is_never_shown(place: Home, url: str, shown: str) -> None:
    settings = load(place, environ={"PALYRA_JOURNAL_DATABASE_URL": url})

    assert settings.journal.database_url == url
    assert effective(settings)["journal.database_url"] == shown
    assert effective(Settings(journal=JournalSettings(database_url=url)))["journal.database_url"] == shown
    assert "s3cret" not in repr(settings)


# -- the hash


def test_the_hash_is_that_of_the_values_wherever_they_are_from(place: Home) -> None:
    from_file = load(written(place, "[http]\nport = 1\n"), environ={})
    place.config.unlink()
    assert settings_hash(from_file) == settings_hash(load(place, environ={"PALYRA_HTTP_PORT": "1"}))
    assert settings_hash(from_file) != settings_hash(Settings())


def test_the_hash_does_not_know_the_secret(place: Home) -> None:
    def hashed(url: str, **environ: str) -> str:
        return settings_hash(load(place, environ={"PALYRA_JOURNAL_DATABASE_URL": url, **environ}))

    assert hashed("env:A", A="one") == hashed("env:A", A="two")
    assert hashed("env:A", A="one") != hashed("env:B", B="one")
    assert hashed(URL) == hashed(URL.replace("s3cret", "other"))


# -- changes


def test_limits_and_what_the_doors_take_change_live_and_the_rest_at_the_next_start() -> None:
    new = Settings(
        http=HttpSettings(port=1),
        gateway=GatewaySettings(max_streams=1, request_burst=1),
        journal=JournalSettings(database_url=URL),
        runs=RunSettings(max_concurrent=1, max_queued_inputs=1),
        limits=Limits(tool_timeout_ms=1),
    )

    live, restart = changes(Settings(), new)

    assert live == ("gateway.max_streams", "gateway.request_burst", "runs.max_queued_inputs", "limits.tool_timeout_ms")
    assert restart == ("http.port", "journal.database_url", "runs.max_concurrent")
    assert changes(new, new) == ((), ())


def test_a_reload_takes_over_what_it_can_and_names_the_rest(place: Home) -> None:
    current = load(place, environ={})
    written(
        place, "[http]\nport = 1\n[runs]\nmax_queued_inputs = 3\nmax_concurrent = 4\n[limits]\ntool_timeout_ms = 5\n"
    )

    done = reload(place, current, environ={})

    assert done.live == ("runs.max_queued_inputs", "limits.tool_timeout_ms")
    assert done.restart == ("http.port", "runs.max_concurrent")
    assert done.settings == Settings(runs=RunSettings(max_queued_inputs=3), limits=Limits(tool_timeout_ms=5))
    # What waits for a restart is named again, for as long as it waits.
    again = reload(place, done.settings, environ={})
    assert (again.live, again.restart, again.settings) == ((), done.restart, done.settings)


def test_a_reload_of_wrong_settings_changes_nothing(place: Home) -> None:
    written(place, "[runs]\nmax_queued_inputs = 3\nmax_concurent = 4\n")
    with pytest.raises(SettingsInvalid, match="Did you mean 'max_concurrent'"):
        reload(place, Settings(), environ={})


# -- the home


@pytest.mark.parametrize(
    ("home", "profile", "environ", "path", "because"),
    [
        (None, None, {}, "~/.palyra", ("~/.palyra is the usual home",)),
        (None, None, {"PALYRA_HOME": "/a"}, "/a", ("PALYRA_HOME is /a",)),
        ("/b", None, {"PALYRA_HOME": "/a"}, "/b", ("--home is /b",)),
        ("/b", "work", {"PALYRA_PROFILE": "play"}, "/b-work", ("--home is /b", "--profile is work")),
        (
            None,
            None,
            {"PALYRA_HOME": "/a", "PALYRA_PROFILE": "w"},
            "/a-w",
            ("PALYRA_HOME is /a", "PALYRA_PROFILE is w"),
        ),
    ],
)
def test_the_home_is_found_and_why_is_told(
    home: str | None, profile: str | None, environ: dict[str, str], path: str, because: tuple[str, ...]
) -> None:
    chosen, reasons = choose_home(home=home, profile=profile, environ=environ)
    assert (chosen.path, reasons) == (Path(path).expanduser(), because)
    assert find_home(home=home, profile=profile, environ=environ) == chosen


@pytest.mark.parametrize("name", ["../x", "a b", "-x", "x" * 65])
def test_a_profile_is_a_plain_name(name: str) -> None:
    with pytest.raises(SettingsInvalid, match="not a valid profile name"):
        find_home(profile=name, environ={})


def test_the_daemon_kills_itself_only_where_a_test_says_so() -> None:
    assert [config.crash_after({"PALYRA_CRASH_AFTER": text}) for text in ("3", "", "x")] == [3, None, None]


# -- MCP servers


def test_mcp_servers_are_read_with_their_secrets_named(place: Home) -> None:
    written(
        place,
        '[mcp.servers.files]\ncommand = "npx"\nargs = ["-y", "files"]\ntimeout_seconds = 5\ntools = ["read"]\n'
        'env = {KEY = "env:FILES_KEY", HOST = "localhost:80", PLAIN = "plain-secret", V = "vault:files"}\n'
        '[mcp.servers.web]\nurl = "https://example.org/mcp"\nheaders = {Authorization = "file:key"}\n'
        'risk = "medium"\nrisks = {delete = "critical"}\n',
    )
    settings = load(place, environ={})

    files, web = settings.mcp.servers["files"], settings.mcp.servers["web"]
    assert (files.command, files.args, files.timeout_seconds, files.tools) == ("npx", ("-y", "files"), 5, ("read",))
    assert (web.url, web.risk, web.risks) == ("https://example.org/mcp", "medium", {"delete": "critical"})
    assert {key: str(reference) for key, reference in references(settings).items()} == {
        "mcp.servers.files.env.KEY": "env:FILES_KEY",
        "mcp.servers.web.headers.Authorization": "file:key",
    }
    shown = str(effective(settings)["mcp.servers"])
    assert "plain-secret" not in shown
    assert "env:FILES_KEY" in shown
    assert settings_hash(settings) != settings_hash(Settings())
    lost = [problem.key for problem in unresolved(place, read(place, environ={}), environ={})]
    assert lost == ["mcp.servers.files.env.KEY", "mcp.servers.web.headers.Authorization"]


@pytest.mark.parametrize(
    ("text", "complaint_about"),
    [
        ('comand = "npx"\ncommand = "npx"', "Did you mean 'command'?"),
        ("", "has neither a command nor a url"),
        ('command = "a"\nurl = "https://a.org"', "has both a command and a url"),
        ('command = "a"\nheaders = {A = "b"}', "headers applies only to a server with a url"),
        ('url = "https://a.org"\nenv = {A = "b"}', "env applies only to a server with a command"),
        ('url = "https://me:secret@a.org/"', "url is not a valid URL"),
        ('url = "ftp://a.org/"', "url is not a valid URL"),
        ('url = "https://a.org"\nheaders = {"a b" = "c"}', "cannot be sent"),
        ('command = "a"\nenv = {"A=B" = "c"}', "is not a valid variable name"),
        ('command = "a"\nenv = {A = "vault:"}', "is not a complete reference"),
        ('command = "a"\nrisk = "none"', "mcp.servers is not valid"),
        ('command = "a"\ntimeout_seconds = 0', "mcp.servers is not valid"),
    ],
)
def test_a_wrong_mcp_server_is_refused_with_the_reason(place: Home, text: str, complaint_about: str) -> None:
    written(place, f"[mcp.servers.a]\n{text}\n")
    assert complaint_about in complaint(place)


def test_a_key_in_the_address_of_an_mcp_server_is_not_shown(place: Home) -> None:
    written(place, '[mcp.servers.a]\nurl = "https://example.org/mcp?profile=x&apiKey=s3cret"\n')
    settings = load(place, environ={})
    server = settings.mcp.servers["a"]
    assert server.url == "https://example.org/mcp?profile=x&apiKey=s3cret"
    shown = "https://example.org/mcp?profile=***&apiKey=***"
    assert server_address(server) == shown
    assert shown in str(effective(settings)["mcp.servers"])
    assert "s3cret" not in str(effective(settings))


def test_the_name_of_an_mcp_server_is_part_of_names_of_tools(place: Home) -> None:
    written(place, '[mcp.servers."Two Words"]\ncommand = "a"\n')
    assert "is not a valid server name" in complaint(place)


def test_mcp_servers_come_and_go_live(place: Home) -> None:
    written(place, '[mcp.servers.a]\ncommand = "a"\n')
    done = reload(place, Settings(), environ={})
    assert (done.live, done.restart) == (("mcp.servers",), ())
    assert list(done.settings.mcp.servers) == ["a"]


# -- budgets


@pytest.mark.parametrize(
    ("only", "says"),
    [
        ('subject = "model"\nonly = "embedded"', "does not name a model"),
        ('subject = "model"\nonly = "nobody/large"', "names the unknown provider"),
        ('subject = "session"\nonly = "my talk"', "does not name a session"),
        ('subject = "session"\nonly = "01arz3ndektsv4rrffq69g5fav"', "does not name a session"),
        ('only = "user:ana"', "cannot be limited to one"),
    ],
)
def test_a_budget_that_would_cap_nothing_is_refused(place: Home, only: str, says: str) -> None:
    told = complaint(written(place, f"[spending.budgets.mine]\ntokens = 10\n{only}\n"))
    assert says in told
    assert "spending.budgets.mine" in told


@pytest.mark.parametrize(
    "only",
    [
        'subject = "model"\nonly = "embedded/palyra"',
        'subject = "session"\nonly = "01ARZ3NDEKTSV4RRFFQ69G5FAV"',
        'subject = "agent"\nonly = "main"',
    ],
)
def test_a_budget_may_be_for_one_alone(place: Home, only: str) -> None:
    settings = load(written(place, f"[spending.budgets.mine]\ntokens = 10\n{only}\n"), environ={})
    assert settings.spending.budgets["mine"].only


@pytest.mark.parametrize("key", RENAMED)
def test_a_key_of_an_earlier_version_is_refused_with_its_name_now(place: Home, key: str) -> None:
    section, _, old = key.rpartition(".")
    table = f"{section}.mine" if section in TABLES else section
    written(place, f"[{table}]\n{old} = 1\n")

    (problem,) = [problem for problem in read(place, environ={}).problems if problem.key == f"{table}.{old}"]

    assert str(problem).endswith(f"unknown key {old!r} in section [{table}]. It was renamed: write {RENAMED[key]!r}.")


@pytest.mark.parametrize("key", RENAMED)
def test_every_renamed_key_has_a_new_one(key: str) -> None:
    section, _, _ = key.rpartition(".")
    fields = TABLES[section].entry if section in TABLES else type(getattr(Settings(), section))
    assert RENAMED[key] in fields.__struct_fields__


def test_a_variable_of_an_earlier_version_is_refused_with_its_name_now(place: Home) -> None:
    problems = read(place, environ={"PALYRA_RUNS_CONCURRENCY": "3"}).problems

    assert [str(problem) for problem in problems] == [
        "PALYRA_RUNS_CONCURRENCY: unknown variable. It was renamed: set PALYRA_RUNS_MAX_CONCURRENT."
    ]
