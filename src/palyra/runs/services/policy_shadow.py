"""A candidate set of policies beside the one in force: it judges every call a second time, and decides nothing.

It is called when the real decision is on the tape, so that it cannot affect that. Where the two agree, the call is
counted in memory, and written from time to time; where they differ, it is written at once. The candidate's text is
in the journal: it is the same on every daemon, survives a restart, and does not change with the files it came from.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from palyra.core.clock import Clock, to_ms
from palyra.core.errors import Invalid, NotFound, PalyraError
from palyra.core.ids import IdSource, PrincipalId
from palyra.core.message import clean_text
from palyra.core.policy.policy_shadow import (
    MAX_POLICY_FILES,
    DecisionDifference,
    PolicyFile,
    ShadowPolicy,
    ShadowReport,
)
from palyra.core.run.decided_calls import DecidedCall
from palyra.core.tool import ToolSpec
from palyra.journal.engines.base import JOURNAL_AWAY, Connection, Engine
from palyra.journal.stores import policy_shadows
from palyra.policy.cedar_source import split
from palyra.policy.gate import Gate, Judgement
from palyra.policy.loader import Policies, combine, load_texts

FLUSH_SECONDS = 15.0
"""How long an agreement may be in memory only."""
READ_SECONDS = 2.0
"""How often the rows are read where other daemons write to the same journal."""
MAX_UNWRITTEN = 500
FAILURE_CHARS = 300

log = logging.getLogger(__name__)

Asked = tuple[DecidedCall, ToolSpec]


class ShadowPolicyNotFound(NotFound):
    """No candidate policies are being tried. `palyra policy shadow start FILE` starts a trial."""


class ShadowPolicyInvalid(Invalid):
    """The candidate is not valid. It must have 1 to 64 policy files, each with its own name."""


class PolicyShadowService:
    """Stores the candidate, evaluates it, and reports where it differs."""

    def __init__(self, engine: Engine, *, clock: Clock, ids: IdSource, shared: bool = False) -> None:
        """`shared` says that other daemons write to the same journal."""
        self._engine = engine
        self._clock = clock
        self._ids = ids
        self._shared = shared
        self._shadow_id = ""
        self._gate: Gate | None = None
        self._flips: list[DecisionDifference] = []
        self._judged = 0
        self._failed = 0
        self._failure = ""
        self._turn_to_write = asyncio.Lock()
        self._wake = asyncio.Event()

    @property
    def active(self) -> bool:
        """Whether there is a candidate."""
        return self._gate is not None

    # -- start, stop, report

    async def start(self, by: PrincipalId, files: Sequence[PolicyFile]) -> ShadowPolicy:
        """Let a candidate judge from now on; the same candidate as before continues, any other starts from zero.

        Raises `PolicyInvalid`, and changes nothing, if the files cannot be used.
        """
        _check(files)
        policies = await asyncio.to_thread(load_texts, [(file.name, file.text) for file in files])
        await self.flush()
        fresh = ShadowPolicy(
            shadow_id=self._ids.new(),
            hash=policies.hash,
            files=tuple(file.name for file in files),
            started_at=self._clock.now(),
            started_by=by,
        )
        shadow = await self._engine.write(lambda conn: _begin(conn, fresh, files))
        if shadow.shadow_id == fresh.shadow_id:
            log.info(
                "the candidate policies %s are now tried beside those in force", shadow.hash, extra={"started_by": by}
            )
        self._adopt(shadow.shadow_id, policies)
        return shadow

    async def stop(self, by: PrincipalId) -> ShadowPolicy:
        """Stop the candidate; its findings stay until the next one begins."""
        await self.flush()
        at_ms = to_ms(self._clock.now())

        def unit(conn: Connection) -> ShadowPolicy:
            if policy_shadows.current_id(conn) is None:
                raise ShadowPolicyNotFound
            policy_shadows.end(conn, by=by, at_ms=at_ms)
            return _latest(conn)

        shadow = await self._engine.write(unit)
        self._forget()
        log.info("the candidate policies %s are no longer tried", shadow.hash, extra={"stopped_by": by})
        return shadow

    async def report(self) -> ShadowReport:
        """Return the findings so far; those of the last candidate, if none judges now."""
        await self.flush()

        def query(conn: Connection) -> ShadowReport:
            shadow = _latest(conn)
            return ShadowReport(shadow=shadow, clauses=policy_shadows.clauses(conn, shadow.shadow_id))

        return await self._engine.read(query)

    # -- judging

    async def compare(self, request: Sequence[Asked]) -> None:
        """Let the candidate judge calls whose decisions are recorded. Nothing is raised: the run must not notice."""
        gate, shadow_id = self._gate, self._shadow_id
        if gate is None:
            return
        try:
            judged = await asyncio.to_thread(_judge, gate, request)
        except Exception as error:
            # The candidate was checked when it was stored; later problems with it concern only itself.
            log.warning("the candidate policies could not be evaluated: %s", error)
            self._failed += len(request)
            self._failure = str(error)[:FAILURE_CHARS] or type(error).__name__
            return
        if shadow_id != self._shadow_id:
            return
        self._judged += len(judged)
        flips = [_flip(call, now) for (call, _), now in zip(request, judged, strict=True) if _differs(call, now)]
        if flips:
            self._flips = [*self._flips, *flips][-MAX_UNWRITTEN:]
            await self.flush()

    # -- state

    async def load(self) -> None:
        """Load the candidate, before anything begins."""
        result = await self._engine.read(policy_shadows.latest)
        if result is None or result[0].stopped_at is not None:
            return
        shadow, files = result
        policies = combine(policy for file in files for policy in split(file.text, file.name))
        if policies.hash != shadow.hash:
            # The base of the candidate came with another version of Palyra: from here on it is a different candidate.
            shadow = replace(shadow, shadow_id=self._ids.new(), hash=policies.hash, started_at=self._clock.now())
            await self._engine.write(lambda conn: policy_shadows.begin(conn, shadow, files))
        self._adopt(shadow.shadow_id, policies)

    async def watch(self) -> None:
        """Write counts, and learn of changes by other daemons, for as long as the daemon runs."""
        while True:
            seconds = READ_SECONDS if self._shared else FLUSH_SECONDS if self.active else None
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            self._wake.clear()
            await self.flush()
            if self._shared:
                with suppress(PalyraError):
                    await self._catch_up()

    async def flush(self) -> None:
        """Write what is only in memory. What cannot be written now is kept for the next time."""
        async with self._turn_to_write:
            if not (self._judged or self._failed):
                return
            shadow_id, flips, judged, failed = self._shadow_id, self._flips, self._judged, self._failed
            failure, self._failure = self._failure, ""
            self._flips, self._judged, self._failed = [], 0, 0
            try:
                stands = await self._engine.write(
                    lambda conn: policy_shadows.add(
                        conn, shadow_id, flips, judged=judged, failed=failed, failure=failure
                    )
                )
            except PalyraError as error:
                # A failed write must not reach the run whose call was judged.
                if not isinstance(error, JOURNAL_AWAY):  # that is logged once, centrally
                    log.warning("the decisions of the candidate policies could not be recorded: %s", error)
                if shadow_id == self._shadow_id:
                    self._flips = [*flips, *self._flips][-MAX_UNWRITTEN:]
                    self._judged, self._failed = self._judged + judged, self._failed + failed
                    self._failure = self._failure or failure
                return
            if not stands and shadow_id == self._shadow_id:
                self._forget()

    async def _catch_up(self) -> None:
        state = await self._engine.read(policy_shadows.current_id)
        if state is None:
            self._forget()
        elif state != self._shadow_id:
            result = await self._engine.read(policy_shadows.latest)
            if result is not None and result[0].stopped_at is None:
                shadow, files = result
                policies = combine(policy for file in files for policy in split(file.text, file.name))
                self._adopt(shadow.shadow_id, policies)

    def _adopt(self, shadow_id: str, policies: Policies) -> None:
        if shadow_id != self._shadow_id or self._gate is None:
            self._forget()
            self._shadow_id, self._gate = shadow_id, Gate(policies)
            self._wake.set()

    def _forget(self) -> None:
        self._shadow_id, self._gate = "", None
        self._flips, self._judged, self._failed, self._failure = [], 0, 0, ""


def _begin(conn: Connection, fresh: ShadowPolicy, files: Sequence[PolicyFile]) -> ShadowPolicy:
    result = policy_shadows.latest(conn)
    if (
        result is not None
        and result[0].stopped_at is None
        and (result[0].hash, result[1]) == (fresh.hash, tuple(files))
    ):
        return result[0]
    policy_shadows.begin(conn, fresh, files)
    return fresh


def _latest(conn: Connection) -> ShadowPolicy:
    result = policy_shadows.latest(conn)
    if result is None:
        raise ShadowPolicyNotFound
    return result[0]


def _judge(gate: Gate, request: Sequence[Asked]) -> list[Judgement]:
    # Imported here, off the event loop: a daemon without a candidate does not need it.
    from palyra.policy.simulation import judge_again

    return [judge_again(gate, call, spec) for call, spec in request]


def _differs(call: DecidedCall, now: Judgement) -> bool:
    return now.verdict is not call.decided.verdict


def _flip(call: DecidedCall, now: Judgement) -> DecisionDifference:
    decided = call.decided
    return DecisionDifference(
        call_id=decided.call_id,
        tool=call.proposed.tool,
        risk=now.risk,
        principal=call.principal,
        session_id=call.session_id,
        run_id=call.run_id,
        at=decided.at,
        was=decided.verdict,
        was_by=decided.policies,
        was_reason=decided.reason,
        was_hash=decided.policy_hash,
        would=now.verdict,
        would_by=now.policies,
        would_reason=now.reason,
    )


def _check(files: Sequence[PolicyFile]) -> None:
    if not 1 <= len(files) <= MAX_POLICY_FILES or len({file.name for file in files}) != len(files):
        raise ShadowPolicyInvalid
    for file in files:
        if not clean_text(file.name, what="name of a file").strip() or len(file.name) > 4096:
            raise ShadowPolicyInvalid
        clean_text(file.text, what=f"file {file.name}")
