"""A whole Palyra in the test's own process: the graph that `palyra.daemon` builds, without its network doors.

    world = await begin(model=Script(default=(Text(text="Hello!"),)))
    said = await world.say("Hi.")
    await world.ended(said)
    assert await world.kinds(said) == [...]

A world lives on a journal, and can die and live again on it: `crash` leaves everything as a killed process would.
Fakes stand at ports only: the model, the tools, the clock, the source of ids, and the line to the journal.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

import msgspec
from nacl.signing import SigningKey

from palyra.background.metrics import Metrics
from palyra.background.queue import Job
from palyra.core.agent import Agent
from palyra.core.clock import to_ms
from palyra.core.errors import JournalClosed
from palyra.core.events import Entry, InputMode, TapeEvent
from palyra.core.ids import RANDOM_BYTES, AgentId, IdSource, PrincipalId, RunId, SessionId, ulid
from palyra.core.limits import Limits
from palyra.core.message import AcceptedMessage, Inbound
from palyra.core.model.catalog import Capabilities
from palyra.core.model.prompt import Message, ModelEvent, Prompt
from palyra.core.run.record import RunRecord
from palyra.core.run.state import RunState, RunStatus
from palyra.core.session import Session, SessionRef
from palyra.core.spending.price import FREE, Price
from palyra.daemon.parts.guards import GuardParts
from palyra.daemon.parts.journal import JournalParts
from palyra.daemon.parts.journal_setup import JournalIdentity
from palyra.daemon.parts.runs import build_runs, build_worker
from palyra.daemon.parts.services import build_services
from palyra.daemon.parts.subsystems import Subsystems
from palyra.daemon.parts.vault import build_vault
from palyra.home import Home
from palyra.journal import migrate, tape
from palyra.journal.engines.base import Connection, Engine, Fact, FailureListener, Listener, Unit
from palyra.journal.engines.postgres_engine import PostgresEngine
from palyra.journal.engines.sqlite_engine import SqliteEngine
from palyra.journal.ledger import embeddings
from palyra.journal.proof.signing_key import KeySigner
from palyra.journal.storage_health import Storage
from palyra.journal.stores import agents, leases, messages, meta, runs, sessions, tasks
from palyra.journal.tail import Tail
from palyra.memory.prompt_assembly import PromptAssembler
from palyra.policy.gate import Gate
from palyra.policy.loader import combine
from palyra.providers.base import Provider
from palyra.providers.circuit_breaker import CircuitBreakers
from palyra.providers.model_pool import Build, ModelPool
from palyra.providers.scripted import Script, ScriptedProvider
from palyra.providers.transport.remote_provider import RemoteProvider
from palyra.runs.engine.attester import ExecutionAttester
from palyra.runs.engine.models import ModelParts
from palyra.runs.engine.tool_contexts import ToolParts
from palyra.runs.engine.worker import RunWorker
from palyra.runs.recording.replay import replay
from palyra.runs.services.budgets import BudgetService
from palyra.runs.services.emergency_stops import StopFile, StopService
from palyra.runs.services.policy_shadow import PolicyShadowService
from palyra.runs.services.secrets import UsedSecrets
from palyra.runs.system import System
from palyra.sandbox.base import Sandbox
from palyra.sandbox.files.reserved_files import NOTHING, ReservedFiles
from palyra.sandbox.files.workspace import Workspace
from palyra.sandbox.network.egress import Egress
from palyra.sandbox.wasm.runner import WasmRunner
from palyra.settings import ApprovalSettings, ModelSettings, RunSettings, Settings, SpendingSettings
from palyra.tools.base import NO_SANDBOX, PUBLIC
from palyra.tools.toolbox import BUILTIN_ONLY, Toolbox
from tests.support.builders import ANA, AT
from tests.support.clock import MovableClock
from tests.support.eventually import eventually
from tests.support.journal_invariants import check_books

T = TypeVar("T")

Said = AcceptedMessage | RunRecord | str
"""A run, by the answer of the door, by its row, or by its id; where a session is meant, that session."""

BEN = PrincipalId("user:ben")
CONCURRENCY = 64
SHIPPED = Gate(combine(()))
QUEUED_INPUTS = 16
OPEN_RUNS = 200
SIGNER = KeySigner(SigningKey(bytes(32)))
ATTESTER = ExecutionAttester(SIGNER)


class PriceTags:
    """Prices as a test sets them; everything else is free."""

    def __init__(self) -> None:
        self.tags: dict[str, Price | None] = {}

    def price(self, model: str, /) -> Price | None:
        return self.tags.get(model, FREE)


class CountedIds:
    """Ids that sort in the order in which they were given."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def new(self) -> str:
        return ulid(to_ms(AT), next(self._numbers).to_bytes(RANDOM_BYTES, "big"))


class Model:
    """A model that is a function of the prompt."""

    name = "function"
    model = "of the prompt"

    def __init__(self, speak: Callable[[Prompt], AsyncIterator[ModelEvent]], *, window_tokens: int = 100_000) -> None:
        self.stream = speak
        self.capabilities = Capabilities(window_tokens=window_tokens, max_output_tokens=max(1, window_tokens // 4))


class _Heard:
    """Passes everything on to a model, and keeps what it was asked."""

    def __init__(self, model: Provider) -> None:
        self._model = model
        self.name, self.model, self.capabilities = model.name, model.model, model.capabilities
        self.prompts: list[Prompt] = []

    def stream(self, prompt: Prompt) -> AsyncIterator[ModelEvent]:
        self.prompts.append(prompt)
        return self._model.stream(prompt)


async def _nothing() -> None:
    pass


class Line:
    """The journal as one life of the daemon reaches it. A test can cut it, deafen it, or step in before each write."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._listeners: list[Listener] = []
        self.cut = False
        """The process behind this line is dead: nothing gets through any more, in either direction."""
        self.deaf = False
        """Wake-ups are lost."""
        self.before_write: Callable[[], Awaitable[None]] = _nothing
        engine.subscribe(self._pass_on)

    async def write(self, unit: Unit[T]) -> T:
        await self.before_write()

        def alive(conn: Connection) -> T:
            self._check()
            return unit(conn)

        result = await self._engine.write(alive)
        self._check()
        return result

    async def read(self, query: Unit[T]) -> T:
        self._check()
        return await self._engine.read(query)

    def subscribe(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def on_failure(self, listener: FailureListener) -> None:
        self._engine.on_failure(listener)

    async def close(self) -> None:
        raise AssertionError("no part closes the journal")

    def _check(self) -> None:
        if self.cut:
            raise JournalClosed

    def _pass_on(self, facts: Sequence[Fact]) -> None:
        if not self.cut and not self.deaf:
            for listener in self._listeners:
                listener(facts)


class _Config:
    """The settings of a world, as it has them at each moment."""

    hash = ""

    def __init__(self, world: "World") -> None:
        self._world = world

    @property
    def now(self) -> Settings:
        return self._world.settings

    def watch(self, changed: Callable[[Settings], None]) -> None:
        """Nothing is reloaded here."""


def _no_remote(provider: str, model: str) -> RemoteProvider:
    raise AssertionError("no request is passed on here")


@dataclass
class _Life:
    """What is gone after a crash."""

    engine: Engine
    line: Line
    worker: RunWorker
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)


class World:
    """See the module. `place` is a file for SQLite or the address of a PostgreSQL."""

    def __init__(
        self,
        place: Path | str,
        *,
        model: Provider | Script,
        folder: Path,
        limits: Limits | None = None,
        jobs: dict[str, Job] | None = None,
        clock: MovableClock | None = None,
        ids: IdSource | None = None,
        house: str = "house",
        stop_file: StopFile | None = None,
        egress: Egress = PUBLIC,
        sandbox: Sandbox = NO_SANDBOX,
        forbidden: ReservedFiles = NOTHING,
        toolbox: Toolbox = BUILTIN_ONLY,
        workers: int = 1,
        concurrency: int = CONCURRENCY,
    ) -> None:
        self._workers = workers
        self._concurrency = concurrency
        self._egress = egress
        self._sandbox = sandbox
        self._forbidden = forbidden
        self._toolbox = toolbox
        self._place = place
        self._model = _Heard(ScriptedProvider(model) if isinstance(model, Script) else model)
        self._folder = folder
        self._limits = limits or Limits()
        self._jobs = jobs or {}
        self._house = house
        self._stop_file = stop_file
        self._commits_left: int | None = None
        self._died = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._alive: _Life | None = None
        self.gate = SHIPPED
        self.inbox = False
        """Somebody looks into the list of questions."""
        self.expires = timedelta(days=1)
        """How long a question stays open."""
        self.spending = SpendingSettings()
        self.prices = PriceTags()
        self.models = ModelSettings()
        self.others: dict[str, Provider] = {}
        """Further providers that the settings of models may name."""
        self.build: Build = lambda settings, name, model: self.others.get(name, self._model)
        self.clock = clock or MovableClock()
        self.ids = ids or CountedIds()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return Settings(
            approvals=ApprovalSettings(inbox=self.inbox, timeout_seconds=int(self.expires.total_seconds())),
            limits=self._limits,
            model=self.models,
            runs=RunSettings(
                max_queued_inputs=QUEUED_INPUTS, max_open_runs=OPEN_RUNS, max_concurrent=self._concurrency
            ),
            spending=self.spending,
        )

    @property
    def prompts(self) -> list[Prompt]:
        """All that the model was asked, over all lives."""
        return self._model.prompts

    @property
    def line(self) -> Line:
        """The line of the worker and the queue to the journal. The doors have one of their own."""
        return self._life.line

    @property
    def worker(self) -> RunWorker:
        return self._life.worker

    @property
    def engine(self) -> Engine:
        return self._life.engine

    @property
    def _life(self) -> _Life:
        assert self._alive is not None, "the world has ended"
        return self._alive

    # -- lives

    async def start(self) -> Self:
        engine = self._open()
        await engine.write(self._introduce)
        line, used = Line(engine), UsedSecrets()
        system = System(self.clock, self.ids, _Config(self))
        owner = f"{self._house}:{self.ids.new()}"
        journal = JournalParts(
            engine=line,
            storage=Storage(line, clock=self.clock),
            identity=JournalIdentity("journal", owner, SIGNER, begin=None),
            tail=Tail(line),
            metrics=Metrics(line),
            shared=not isinstance(self._place, Path),
        )
        vault = build_vault(Home(self._folder.parent), system, line, used)
        models, tools, guards = self._models(line), self._tools(), await self._guards(journal)
        parts = Subsystems(system, journal, vault, models, tools, guards)
        built = build_runs(parts, jobs=self._jobs)
        owners = [f"{self._house}:{self.ids.new()}" for _ in range(self._workers - 1)]
        workers = [built.worker, *(build_worker(parts, built.loop, owner=owner) for owner in owners)]
        self._alive = _Life(engine, line, built.worker)
        coroutines = (*(worker.run() for worker in workers), guards.stops.watch(), built.embeddings.keep())
        self._alive.tasks = [asyncio.create_task(one) for one in (*coroutines, built.queue.run())]
        # The endpoints have a line of their own, which no test cuts.
        services = build_services(replace(parts, journal=replace(journal, engine=engine)), built.worker)
        self.tail, self.storage, self.embeddings = journal.tail, journal.storage, built.embeddings
        self.stops, self.shadows = guards.stops, guards.shadows
        self.secrets, self.seals = vault.secrets, vault.sealer
        self.intake, self.control = services.intake, services.cancellation
        self.approvals, self.sessions = services.approvals, services.sessions
        return self

    def _models(self, line: Line) -> ModelParts:
        pool = ModelPool(
            lambda: self.models,
            build=lambda settings, name, model: self.build(settings, name, model),
            breakers=CircuitBreakers(self.clock),
        )
        budgets = BudgetService(lambda: self.spending, self.prices)
        return ModelParts(pool, PromptAssembler(line), budgets, remote=_no_remote)

    def _tools(self) -> ToolParts:
        return ToolParts(
            toolbox=self._toolbox,
            gate=lambda: self.gate,
            workspaces=lambda _: Workspace((self._folder,), forbidden=self._forbidden),
            sandbox=self._sandbox,
            modules=WasmRunner(),
            egress=self._egress,
        )

    async def _guards(self, journal: JournalParts) -> GuardParts:
        clock, ids, line = self.clock, self.ids, journal.engine
        stops = StopService(line, clock=clock, ids=ids, file=self._stop_file, shared=journal.shared)
        await stops.load()
        shadows = PolicyShadowService(line, clock=clock, ids=ids)
        await shadows.load()
        return GuardParts(stops, shadows)

    async def crash(self) -> None:
        """Die as if killed at this moment, and live again. What was not recorded by now never will be."""
        await self.die()
        await self.start()

    async def die(self) -> None:
        """Leave everything as a killed process would: no lease is given back, no tool's end is recorded."""
        self._life.line.cut = True
        await self._end()

    async def stop_queue(self) -> None:
        """Let no further task be carried out in this life."""
        queue = self._life.tasks.pop()
        queue.cancel()
        await asyncio.gather(queue, return_exceptions=True)

    async def stop(self) -> None:
        """End in an orderly way, and look whether the books are right."""
        if self._alive is not None:
            await self.check_books()
            await self._end()

    def dies_after(self, commits: int) -> None:
        """Let this life end right after so many further commits, before anybody hears of the last of them."""
        self._died.clear()
        self._commits_left = commits

    async def dies_before_end_of(self, run: Said) -> bool:
        """Wait for the death that was ordered or for the run's end; tell whether it was the death."""
        return await self._dies_before(lambda conn: runs.is_open(conn, _run_id(run)))

    async def dies_before_rest(self) -> bool:
        """Wait for the death that was ordered or for the end of every run; tell whether it was the death."""
        return await self._dies_before(runs.counts)

    async def _dies_before(self, under_way: Unit[object]) -> bool:
        async def look() -> bool:
            assert self._died.is_set() or not await self.engine.read(under_way)
            return True

        _: bool = await eventually(look, timeout=60)
        self._commits_left = None
        return self._life.line.cut

    async def _end(self) -> None:
        life, self._alive, self._commits_left = self._life, None, None
        self._died.clear()
        for task in life.tasks:
            task.cancel()
        outcomes = await asyncio.gather(*life.tasks, return_exceptions=True)
        await life.engine.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not life.line.cut:
                raise outcome

    def _open(self) -> Engine:
        if isinstance(self._place, Path):
            return SqliteEngine(self._place, after_commit=self._count_commit)
        return PostgresEngine(self._place, after_commit=self._count_commit)

    def _count_commit(self) -> None:
        if self._commits_left is None or self._alive is None:
            return
        self._commits_left -= 1
        if self._commits_left == 0:
            self._commits_left = None
            self._alive.line.cut = True
            self._loop.call_soon_threadsafe(self._died.set)

    def _introduce(self, conn: Connection) -> None:
        migrate.migrate(conn, now_ms=to_ms(self.clock.now()))
        meta.set_once(conn, "public_key", SIGNER.public_key)
        leases.release_dead_owners(conn, leases.RUNS, home=self._house)
        leases.release_dead_owners(conn, leases.TASKS, home=self._house)
        embeddings.release_dead_owners(conn, home=self._house)
        for person in (ANA, BEN):
            self._know(conn, person)

    def _know(self, conn: Connection, person: PrincipalId) -> None:
        if agents.default(conn, person) is None:
            agent_id = AgentId(self.ids.new())
            agents.put(
                conn,
                Agent(agent_id=agent_id, principal=person, name="main", instructions="Be brief.", is_default=True),
            )

    async def know(self, *people: PrincipalId) -> None:
        """Let further people talk to an agent of their own."""
        for person in people:
            await self.engine.write(lambda conn, person=person: self._know(conn, person))  # type: ignore[misc]

    async def change_agent(self, **changes: object) -> None:
        """Change Ana's agent."""

        def change(conn: Connection) -> None:
            agent = agents.default(conn, ANA)
            assert agent is not None
            agents.put(conn, msgspec.structs.replace(agent, **changes))

        await self.engine.write(change)

    # -- the conversation

    async def say(
        self,
        text: str,
        *,
        key: str | None = "main",
        session: SessionRef | None = None,
        mode: InputMode = InputMode.QUEUE,
        idempotency_key: str | None = None,
        who: PrincipalId = ANA,
        origin: str = "api",
    ) -> AcceptedMessage:
        """Send a message, to the session of that key unless another is named."""
        return await self.intake.accept(
            Inbound(
                principal=who,
                text=text,
                session=session or SessionRef(key=key),
                mode=mode,
                idempotency_key=idempotency_key,
                channel=origin,
            )
        )

    async def ask(self, text: str, *, key: str = "main") -> str:
        """Send a message, and return the answer when its run has ended."""
        said = await self.say(text, key=key)
        await self.ended(said)
        return await self.engine.read(lambda conn: messages.answer_of(conn, said.session_id, said.run_id))

    async def cancel(self, run: Said, *, who: PrincipalId = ANA) -> RunRecord:
        return await self.control.cancel(who, _run_id(run))

    async def ended(self, run: Said, *, seconds: float = 60.0, who: PrincipalId = ANA) -> RunRecord:
        """Wait for the run's end, and return it."""

        async def look() -> RunRecord:
            found = await self.run(run, who=who)
            assert found.ended_at is not None, f"the run is {found.status}"
            return found

        return await eventually(look, timeout=seconds)

    async def reaches(self, run: Said, status: RunStatus) -> RunRecord:
        """Wait until the run stands at that status, and return it."""

        async def look() -> RunRecord:
            found = await self.run(run)
            assert found.status is status, f"the run is {found.status}"
            return found

        return await eventually(look, timeout=60)

    async def all_ended(self, said: Iterable[Said]) -> list[RunRecord]:
        return [await self.ended(one) for one in said]

    async def seen(self, of: Said, kind: str, *, times: int = 1) -> Entry:
        """Wait until an event of that kind is on the tape for so many times, and return the last of them."""

        async def look() -> Entry:
            found = [entry for entry in await self.tape(of) if entry.kind == kind]
            assert len(found) >= times, f"{kind} was seen {len(found)} times"
            return found[times - 1]

        return await eventually(look, timeout=60)

    async def quiet(self) -> None:
        """Wait until no task is left to be done."""

        async def look() -> bool:
            left = await self.engine.read(tasks.counts)
            assert "pending" not in left, left
            return True

        _: bool = await eventually(look, timeout=60)

    # -- what is recorded

    async def run(self, run: Said, *, who: PrincipalId = ANA) -> RunRecord:
        found = await self.engine.read(lambda conn: runs.get(conn, _run_id(run), who))
        assert found is not None, "there is no such run"
        return found

    async def runs(self, *, who: PrincipalId = ANA) -> list[RunRecord]:
        """Return all runs, the first accepted first."""
        found = await self.control.page(who, session_id=None, before=None, limit=1000)
        return found[::-1]

    async def child_of(self, parent: Said, *, number: int = 1) -> RunRecord:
        """Wait until the run has so many children, and return the last of them."""

        async def look() -> RunRecord:
            children = [run for run in await self.runs() if run.parent_run_id == _run_id(parent)]
            assert len(children) >= number, f"there are {len(children)} children"
            return children[number - 1]

        return await eventually(look, timeout=60)

    async def tape(self, of: Said) -> list[Entry]:
        """Return the tape of a run or of a whole session."""

        def query(conn: Connection) -> list[Entry]:
            if runs.session_of(conn, _run_id(of)) is not None:
                return tape.of_run(conn, _run_id(of))
            return tape.page(conn, _session_id(of), after_seq=0)

        return await self.engine.read(query)

    async def events(self, of: Said) -> list[TapeEvent]:
        return [entry.event for entry in await self.tape(of)]

    async def kinds(self, of: Said) -> list[str]:
        return [entry.kind for entry in await self.tape(of)]

    async def state(self, run: Said) -> RunState:
        return await self.engine.read(lambda conn: replay(conn, _run_id(run)))

    async def messages(self, session: Said) -> list[Message]:
        session_id = _session_id(session)
        kept = await self.engine.read(lambda conn: messages.following(conn, session_id, after_seq=0, limit=10_000))
        return [item.message for item in kept]

    async def session(self, session: Said, *, who: PrincipalId = ANA) -> Session:
        found = await self.engine.read(lambda conn: sessions.get(conn, _session_id(session), who))
        assert found is not None
        return found

    async def check_books(self) -> None:
        """Look whether the tapes hold, and whether every row is what they add up to."""
        await self.engine.read(check_books)


def _run_id(run: Said) -> RunId:
    return RunId(run) if isinstance(run, str) else run.run_id


def _session_id(session: Said) -> SessionId:
    return SessionId(session) if isinstance(session, str) else session.session_id
