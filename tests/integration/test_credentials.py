"""A secret of the vault goes with a request, and is nowhere else: in no question, result, tape or file."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from palyra.core.agent import Agent
from palyra.core.events import PolicyDecided, ToolFinished
from palyra.core.ids import AgentId
from palyra.core.policy.approval import Approval
from palyra.core.run.state import RunStatus
from palyra.core.secret import SecretScope
from palyra.core.tool import CallOutcome, JsonObject, Risk
from palyra.journal.content import blobs
from palyra.journal.stores import agents
from palyra.policy.cedar_source import split
from palyra.policy.gate import Gate
from palyra.policy.loader import combine
from palyra.providers.scripted import Script, ScriptCall
from palyra.runs.services.sealing import LONG_CHARS
from palyra.sandbox.network.egress import Egress, EgressLimits
from tests.integration.cast import first_calls, results
from tests.integration.conftest import Begin
from tests.support.builders import ANA
from tests.support.needs import OPENSSL, needs
from tests.support.web_site import Names, Site, certificate, served
from tests.support.world import BEN, Said, World

pytestmark = needs(OPENSSL)

VALUE = "ghp-hunter2/hunter2+hunter2"
HOST = "api.example.org"
SENT = SecretScope(hosts=(HOST,), header="X-Key", format="token {}")


def at_port(scope: SecretScope, port: int) -> SecretScope:
    """Return the scope with its hosts at a port, where the site of a test is."""
    return msgspec.structs.replace(scope, hosts=tuple(f"{host}:{port}" for host in scope.hosts))


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """An API that says back whatever it was asked with."""
    made, key = await asyncio.to_thread(certificate, tmp_path, HOST)
    monkeypatch.setenv("SSL_CERT_FILE", made)
    site = Site()

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = site.asked[-1]
        # Long enough that the whole is kept elsewhere, and what is shown is cut; the header stands at both ends.
        long = said + b"." * (2 * LONG_CHARS) + said if said.split()[1] == b"/long" else said
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % len(long) + long)
        await writer.drain()

    site.replies = dict.fromkeys(("/", "/long"), echo)
    async with served(site, made=made, key=key):
        yield site


@pytest.fixture
def egress() -> Egress:
    names = Names()
    names.answers[HOST] = [["127.0.0.1"]]
    return Egress(resolve=names, judge=lambda place, port: "", reach=EgressLimits(seconds=60))


def fetches(site: Site, path: str = "/", **more: object) -> Script:
    arguments: JsonObject = {"url": f"https://{HOST}:{site.port}{path}", **more}
    return first_calls(ScriptCall(tool="http.fetch", arguments=arguments))


async def question(world: World, run: Said) -> Approval:
    await world.reaches(run, RunStatus.WAITING)
    (found,) = await world.approvals.page(ANA, only_open=True, before=None, limit=10)
    return found


async def allowed(world: World, said: Said) -> ToolFinished:
    """Say yes to the question, and return what came of the call."""
    await world.approvals.resolve(ANA, (await question(world, said)).approval_id, allow=True)
    await world.ended(said)
    (finished,) = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    return finished


async def kept_text(world: World) -> str:
    """Return all that the journal and the model were ever given, in one text."""
    tables = await world.engine.read(
        lambda conn: [
            *conn.fetch("SELECT content FROM tape"),
            *conn.fetch("SELECT text FROM messages"),
            *conn.fetch("SELECT arguments, effect FROM approvals"),
            *[(blobs.get(conn, digest).decode(),) for (digest,) in conn.fetch("SELECT digest FROM blobs")],
        ]
    )
    return "\n".join([*(str(cell) for row in tables for cell in row), *map(repr, world.prompts)])


@pytest.mark.parametrize("path", ["/", "/long"])
async def test_the_host_gets_it_and_nobody_sees_it(begin: Begin, site: Site, egress: Egress, path: str) -> None:
    world = await begin(fetches(site, path), egress=egress)
    await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, site.port))
    said = await world.say("Look.")
    asked = await question(world, said)
    assert asked.effect is not None
    url = f"https://{HOST}:{site.port}{path}"
    assert asked.effect.summary == f"GET {url} with your credential github"
    assert asked.effect.detail == f"GET {url} with your credential github"
    assert (asked.effect.credentials, asked.effect.risk) == (("github",), Risk.MEDIUM)
    finished = await allowed(world, said)
    assert finished.outcome is CallOutcome.OK
    assert f"X-Key: token {VALUE}\r\n".encode() in site.asked[0]
    assert "X-Key: [secret github]" in finished.text
    assert (finished.artifact is not None) == (path == "/long")
    text = await kept_text(world)
    assert "[secret github]" in text
    assert "hunter2" not in text
    assert (await world.secrets.list(ANA))[0].last_used_at is not None


async def test_one_that_was_changed_after_the_question_is_asked_about_anew(
    begin: Begin, site: Site, egress: Egress
) -> None:
    world = await begin(fetches(site), egress=egress)
    said = await world.say("Look.")
    asked = await question(world, said)
    assert asked.effect is not None
    assert asked.effect.credentials == ()
    await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, site.port))
    finished = await allowed(world, said)
    assert finished.outcome is CallOutcome.DENIED
    assert site.asked == []


async def test_one_that_was_set_after_the_call_was_allowed_stays_at_home(
    begin: Begin, site: Site, egress: Egress
) -> None:
    world = await begin(fetches(site), egress=egress)
    world.gate = Gate(combine(split('@id("all") permit (principal, action, resource);', "own.cedar")))
    set_meanwhile = False

    async def before_write() -> None:
        # The first write behind the verdict is that of the call's beginning.
        nonlocal set_meanwhile
        if not set_meanwhile and any(["policy_decided" in await world.kinds(run) for run in await world.runs()]):
            set_meanwhile = True
            await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, site.port))

    world.line.before_write = before_write
    said = await world.say("Look.")
    await world.ended(said)
    (finished,) = [event for event in await world.events(said) if isinstance(event, ToolFinished)]
    assert (set_meanwhile, finished.outcome) == (True, CallOutcome.OK)
    assert b"hunter2" not in site.asked[0]


async def test_what_was_allowed_without_it_is_not_allowed_with_it(begin: Begin, site: Site, egress: Egress) -> None:
    world = await begin(fetches(site), egress=egress)
    first = await world.say("Look.")
    without = await question(world, first)
    assert without.effect is not None
    assert without.effect.kind == f"host:https://{HOST}:{site.port}"
    await world.approvals.resolve(ANA, without.approval_id, allow=True)
    await world.ended(first)
    await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, site.port))
    second = await world.say("Look again.")
    with_it = await question(world, second)
    assert with_it.effect is not None
    assert with_it.effect.kind == f"host:https://{HOST}:{site.port} with github"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
async def test_changing_something_with_it_is_of_high_risk(
    begin: Begin, site: Site, egress: Egress, method: str
) -> None:
    world = await begin(fetches(site, method=method), egress=egress)
    await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, site.port))
    world.inbox = True
    asked = await question(world, await world.say("Do it."))
    assert asked.effect is not None
    assert asked.effect.risk is Risk.HIGH
    assert asked.effect.kind == f"host:https://{HOST}:{site.port} {method} with github"


async def test_a_policy_can_speak_of_it(begin: Begin, site: Site, egress: Egress) -> None:
    world = await begin(fetches(site), egress=egress)
    world.gate = Gate(
        combine(
            split(
                '@id("not-mine") @reason("Not in my name.") forbid (principal, action, resource)'
                ' when { context.credentials.contains("github") };',
                "own.cedar",
            )
        )
    )
    await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, site.port))
    said = await world.say("Look.")
    await world.ended(said)
    (decided,) = [event for event in await world.events(said) if isinstance(event, PolicyDecided)]
    assert decided.policies == ("not-mine",)
    assert site.asked == []


@pytest.mark.parametrize(
    ("scope", "whose"),
    [
        (SecretScope(hosts=("other.example.org",)), ANA),
        (SecretScope(hosts=(HOST,), tools=("other.tool",)), ANA),
        (SecretScope(hosts=(HOST,), agents=(AgentId("01JGKK8F5E000000000000000A"),)), ANA),
        (SecretScope(hosts=()), ANA),
        (SENT, BEN),
        (SENT, "another port"),
    ],
    ids=["another host", "another tool", "another agent", "no host", "another person's", "another port"],
)
async def test_one_that_is_not_meant_for_the_request_stays_at_home(
    begin: Begin, site: Site, egress: Egress, *, scope: SecretScope, whose: str
) -> None:
    world = await begin(fetches(site), egress=egress)
    other = Agent(agent_id=AgentId("01JGKK8F5E000000000000000A"), principal=ANA, name="other", instructions="")
    await world.engine.write(lambda conn: agents.put(conn, other))
    scope = scope if whose == "another port" else at_port(scope, site.port)
    await world.secrets.set(BEN if whose == BEN else ANA, "github", VALUE.encode(), scope)
    finished = await allowed(world, await world.say("Look."))
    assert finished.outcome is CallOutcome.OK
    assert b"hunter2" not in site.asked[0]


async def test_without_tls_it_stays_at_home_and_is_not_spoken_of(begin: Begin, egress: Egress) -> None:
    plain = Site()
    plain.replies["/"] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"
    server = await asyncio.start_server(plain.serve, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        world = await begin(
            first_calls(ScriptCall(tool="http.fetch", arguments={"url": f"http://{HOST}:{port}/"})), egress=egress
        )
        await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, port))
        said = await world.say("Look.")
        asked = await question(world, said)
        assert asked.effect is not None
        assert asked.effect.credentials == ()
        assert (await allowed(world, said)).text.endswith("hi")
    assert b"hunter2" not in plain.asked[0]


async def test_a_vault_whose_key_is_gone_sends_nothing_and_says_why(
    begin: Begin, site: Site, egress: Egress, workspace: Path
) -> None:
    world = await begin(fetches(site), egress=egress)
    await world.secrets.set(ANA, "github", VALUE.encode(), at_port(SENT, site.port))
    (workspace.parent / "vault.key").unlink()
    finished = await allowed(world, await world.say("Look."))
    assert finished.outcome is CallOutcome.ERROR
    assert "key" in finished.text
    assert site.asked == []


async def test_a_short_value_is_hidden_with_its_header(begin: Begin, site: Site, egress: Egress) -> None:
    world = await begin(fetches(site), egress=egress)
    await world.secrets.set(ANA, "door", b"4711", at_port(SecretScope(hosts=(HOST,)), site.port))
    finished = await allowed(world, await world.say("Look."))
    assert b"Authorization: Bearer 4711\r\n" in site.asked[0]
    assert "Authorization: [secret door]" in finished.text
    assert "4711" not in results(world.prompts[-1])[0]
