"""Embeddings on real daemons, asked by the official client: on the tape, in the ledger, under budgets, over a kill."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import httpx
import pytest
from openai import (
    APIConnectionError,
    APIStatusError,
    BadRequestError,
    ConflictError,
    DefaultHttpxClient,
    OpenAI,
    RateLimitError,
)

from palyra.core.text.token_bounds import max_tokens
from tests.e2e.conftest import NewDaemon
from tests.support.command import palyra
from tests.support.daemon import Daemon, NotServing, until
from tests.support.utc_days import within_a_day

Json = Any
Connect = Callable[..., OpenAI]

PRICES = '[models."acme/*"]\ninput = 1000\noutput = 0\n'
"""A thousandth of a dollar for each token."""
SECRET = "the rosebud is a sledge"


class Vectors(BaseHTTPRequestHandler):
    """A provider of embeddings, which does as the first text says."""

    asked: ClassVar[list[Json]] = []
    answer: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.asked.append(body)
        texts = body["input"] if isinstance(body["input"], list) else [body["input"]]
        if texts[0] == "wait":
            self.answer.wait(60)
        if texts[0] == "refuse":
            self._say(400, {"error": {"message": "No.", "type": "invalid_request_error"}})
        elif texts[0] == "break":
            self._say(200, {"object": "something else"})
        elif texts[0] in ("half", "nested"):
            self._say(200, {"data": [{"embedding": [[0.5]] if texts[0] == "nested" else "AAAAPw=="}]})
        elif texts[0] == "uncounted":
            # As little as some servers send.
            self._say(200, {"data": [{"embedding": [0.5, -1.0]} for _ in texts], "usage": None})
        else:
            data = [{"object": "embedding", "index": place, "embedding": [0.5, -1.0]} for place in range(len(texts))]
            usage: Json = {"total_tokens": "7"} if texts[0] == "in words" else {"prompt_tokens": 2, "total_tokens": 2}
            self._say(200, {"object": "list", "data": data, "model": body["model"], "usage": usage})

    def _say(self, status: int, answer: Json) -> None:
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *whom: object) -> None:
        """Who hangs up is none of its business."""


@pytest.fixture
def provider() -> Iterator[int]:
    Vectors.asked, Vectors.answer = [], threading.Event()
    with Server(("127.0.0.1", 0), Vectors) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        Vectors.answer.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def connect() -> Iterator[Connect]:
    made: list[OpenAI] = []

    def client(daemon: Daemon, *, token: str | None = None) -> OpenAI:
        made.append(
            OpenAI(
                base_url=f"{daemon.address}/v1",
                api_key=token or daemon.token,
                max_retries=0,
                timeout=60,
                http_client=DefaultHttpxClient(verify=False),
            )
        )
        return made[-1]

    yield client
    for one in made:
        one.close()


def prepared(daemon: Daemon, provider: int, *, budget: str = "") -> Daemon:
    daemon.home.path.mkdir(mode=0o700)
    daemon.home.config.write_text(
        '[model]\nembeddings = "acme/vectors-1"\n[model.providers.acme]\ndialect = "openai"\n'
        f'base_url = "http://127.0.0.1:{provider}/v1"\n{budget}'
    )
    daemon.home.prices.write_text(PRICES)
    return daemon


def embed(ai: OpenAI, *texts: str, **more: Any) -> Any:
    return ai.embeddings.create(model="acme/vectors-1", input=list(texts), encoding_format="float", **more)


def in_background(call: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(call())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    return thread, outcome


def a_token(daemon: Daemon, who: str) -> str:
    owner = {"authorization": f"Bearer {daemon.token}"}
    asked = {"principal": who, "name": who, "scopes": ["read", "write"]}
    return str(
        httpx.post(f"{daemon.address}/admin/v1/tokens", headers=owner, json=asked, verify=False).json()["secret"]
    )


def test_what_embeddings_took_is_shown_and_neither_texts_nor_vectors_are_kept(
    new_daemon: NewDaemon, connect: Connect, provider: int
) -> None:
    daemon = prepared(new_daemon(), provider).start()
    answer = connect(daemon).embeddings.with_raw_response.create(
        model="acme/vectors-1", input=[SECRET, "b", "c"], encoding_format="float"
    )
    assert len(answer.parse().data) == 3
    request_id, session_id = answer.headers["x-request-id"], answer.headers["x-palyra-session-id"]

    (row,) = daemon.get("/usage", by="model")["rows"]
    assert (row["name"], row["used"]["input_tokens"], row["used"]["micros"]) == ("acme/vectors-1", 2, 2000)
    for by in ("session", "day", "agent", "run"):
        (same,) = daemon.get("/usage", by=by)["rows"]
        assert same["used"] == row["used"]
    (cause,) = daemon.get("/usage/why")["causes"]
    assert cause["cause"] == "embeddings"
    assert daemon.get("/usage/why", run=request_id)["total"] == row["used"]

    tape = daemon.tape(f"/sessions/{session_id}")
    assert [line.kind for line in tape] == [
        "session_created",
        "session_renamed",
        "embeddings_started",
        "embeddings_ended",
    ]
    assert (tape[2].event["texts"], tape[2].event["provider"], tape[2].event["model"]) == (3, "acme", "vectors-1")
    assert not [line for line in tape if SECRET in line.text or "-1.0" in line.text]

    assert "texts to embed" in palyra(daemon, "usage", "causes")
    assert "acme/vectors-1" in palyra(daemon, "usage", "causes", request_id)
    assert "embeddings" in palyra(daemon, "usage", "--by", "run")
    assert "3 texts" in palyra(daemon, "sessions", "tape", session_id)
    assert "embeddings started" in palyra(daemon, "why", request_id)
    assert "Embeddings of" in palyra(daemon, "sessions")
    daemon.stop()
    assert "Journal verified" in palyra(daemon, "journal", "verify", "--deep")
    assert "Nothing to repair" in palyra(daemon, "journal", "rebuild")


def test_a_daemon_killed_between_the_reservation_and_the_answer_settles_it_when_it_starts_again(
    new_daemon: NewDaemon, connect: Connect, provider: int
) -> None:
    within_a_day(lambda: _killed_and_settled(new_daemon, connect, provider))


def _killed_and_settled(new_daemon: NewDaemon, connect: Connect, provider: int) -> None:
    Vectors.asked, Vectors.answer = [], threading.Event()
    held = max_tokens("wait") + max_tokens("x" * 40)
    daemon = prepared(new_daemon(), provider, budget=f"[spending.budgets.daily]\nmoney = {(held + 4) / 1000}\n").start()
    ai = connect(daemon)
    thread, outcome = in_background(lambda: embed(ai, "wait", "x" * 40))
    until(lambda: Vectors.asked)
    assert daemon.get("/usage")["total"]["reserved_micros"] == held * 1000
    # What is set aside is not there for others.
    with pytest.raises(RateLimitError, match="'daily'"):
        embed(ai, "x" * 40)
    daemon.kill()
    thread.join()
    assert isinstance(outcome[0], APIConnectionError)

    daemon.start()
    until(lambda: daemon.get("/usage")["total"]["reserved_tokens"] == 0)
    total = daemon.get("/usage")["total"]
    assert (total["micros"], total["estimated"], total["discarded"]) == (held * 1000, 1, 1)
    assert embed(connect(daemon), "ab").usage.prompt_tokens == 2
    (budget,) = json.loads(palyra(daemon, "usage", "--json"))["budgets"]
    assert [(cap["settled"], cap["reserved"]) for cap in budget["caps"]] == [((held + 2) * 1000, 0)]
    daemon.stop()
    assert "Journal verified" in palyra(daemon, "journal", "verify", "--deep")
    assert "Nothing to repair" in palyra(daemon, "journal", "rebuild")


def test_a_kill_after_any_commit_leaves_nothing_set_aside(
    new_sqlite_daemon: NewDaemon, connect: Connect, provider: int
) -> None:
    for commits in range(3, 30):
        daemon = prepared(new_sqlite_daemon(), provider, budget="[spending.budgets.daily]\ntokens = 1000\n")
        answered = False
        try:
            daemon.start(crash_after=commits)
            embed(connect(daemon), "Hello.")
            answered = daemon.alive
        except (NotServing, APIConnectionError, APIStatusError):
            daemon.wait()
        if not daemon.alive:
            daemon.start()
        until(lambda daemon=daemon: daemon.get("/usage")["total"]["reserved_tokens"] == 0)  # type: ignore[misc]
        daemon.stop()
        assert "Journal verified" in palyra(daemon, "journal", "verify", "--deep")
        if answered:
            return
    raise AssertionError("it never came through")


def test_a_daemon_that_is_stopped_meanwhile_settles_the_call_before_it_ends(
    new_sqlite_daemon: NewDaemon, connect: Connect, provider: int
) -> None:
    daemon = prepared(new_sqlite_daemon(), provider).start()
    thread, _ = in_background(lambda: embed(connect(daemon), "wait"))
    until(lambda: Vectors.asked)
    assert daemon.stop() == 0
    thread.join()
    daemon.start()
    total = daemon.get("/usage")["total"]
    assert (total["reserved_tokens"], total["turns"], total["estimated"]) == (0, 1, 1)


@pytest.mark.parametrize(
    ("budget", "said"),
    [
        ("tokens = 1", r"The budget 'daily' allows 1 tokens per day .* raise \[spending\.budgets\.daily\]"),
        ('tokens = 1\naction = "ask"', r"raise \[spending\.budgets\.daily\].* cannot wait for one"),
        ('subject = "model"\nmoney = 5', r"acme/vectors-1 has no price, .* prices\.toml"),
    ],
)
def test_a_budget_refuses_what_it_has_no_room_for(
    new_sqlite_daemon: NewDaemon, connect: Connect, provider: int, budget: str, said: str
) -> None:
    daemon = prepared(new_sqlite_daemon(), provider, budget=f"[spending.budgets.daily]\n{budget}\n")
    if "money" in budget:
        daemon.home.prices.unlink()
    daemon.start()
    with pytest.raises(RateLimitError, match=said) as refused:
        embed(connect(daemon), "Hello there.")
    assert refused.value.code == "insufficient_quota"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert not Vectors.asked


def test_what_fails_is_void_and_said_in_words(new_sqlite_daemon: NewDaemon, connect: Connect, provider: int) -> None:
    daemon = prepared(new_sqlite_daemon(), provider).start()
    uncounted, broken = max_tokens("uncounted") + max_tokens("y" * 40), max_tokens("break")
    ai = connect(daemon)
    guessed = embed(ai, "uncounted", "y" * 40)
    assert guessed.usage.prompt_tokens == uncounted
    assert [(one.index, one.object) for one in guessed.data] == [(0, "embedding"), (1, "embedding")]
    assert embed(ai, "in words").usage.prompt_tokens == 7
    with pytest.raises(APIStatusError, match="No") as refused:
        embed(ai, "refuse")
    assert refused.value.status_code == 502
    with pytest.raises(APIStatusError, match="does not contain embeddings"):
        embed(ai, "break")
    with pytest.raises(APIStatusError, match="returned only 1 of the 2 embeddings"):
        embed(ai, "half", "x")
    with pytest.raises(APIStatusError, match="does not contain embeddings"):
        embed(ai, "nested")
    used = daemon.get("/usage")["total"]
    # Refused costs nothing; of the others nobody counted.
    assert (used["turns"], used["discarded"], used["estimated"]) == (6, 4, 4)
    unfit = max_tokens("half") + max_tokens("x") + max_tokens("nested")
    assert used["input_tokens"] == uncounted + 7 + broken + unfit
    assert connect(daemon).embeddings.create(model="acme/vectors-1", input="half").data[0].embedding == [0.5]


@pytest.mark.parametrize(
    ("given", "texts", "tokens"),
    [
        ([5, 6, 7], 1, 3),
        ([[5, 6], [7]], 2, 3),
        ("Grüße", 1, max_tokens("Grüße")),
        (["a", "b"], 2, 2 * max_tokens("a")),
    ],
    ids=str,
)
def test_texts_and_tokens_are_counted(
    new_sqlite_daemon: NewDaemon, connect: Connect, provider: int, given: Any, texts: int, tokens: int
) -> None:
    daemon = prepared(new_sqlite_daemon(), provider).start()
    answer = connect(daemon).embeddings.with_raw_response.create(
        model="acme/vectors-1", input=given, encoding_format="float"
    )
    (started,) = [
        line.event
        for line in daemon.tape(f"/sessions/{answer.headers['x-palyra-session-id']}")
        if line.kind == "embeddings_started"
    ]
    sent = json.dumps(given, ensure_ascii=False, separators=(",", ":")).encode()
    assert (started["texts"], started["reserved"]["input_tokens"], started["bytes"]) == (texts, tokens, len(sent))
    assert started["digest"] == hashlib.sha256(sent).hexdigest()


def test_a_stop_refuses_embeddings_and_ends_those_under_way(
    new_sqlite_daemon: NewDaemon, connect: Connect, provider: int
) -> None:
    daemon = prepared(new_sqlite_daemon(), provider).start()
    ai = connect(daemon)
    thread, outcome = in_background(lambda: embed(ai, "wait"))
    until(lambda: Vectors.asked)
    palyra(daemon, "stop", "--reason", "enough")
    thread.join(60)
    assert isinstance(outcome[0], ConflictError)
    with pytest.raises(ConflictError, match="enough"):
        embed(ai, "Hello.")
    assert len(Vectors.asked) == 1
    palyra(daemon, "resume")
    assert embed(ai, "Hello.").data


def test_a_named_session_has_them_on_its_tape(new_sqlite_daemon: NewDaemon, connect: Connect, provider: int) -> None:
    daemon = prepared(new_sqlite_daemon(), provider).start()
    ai = connect(daemon)
    said = daemon.send("Hello.", session={"key": "talk"})
    daemon.finished(said["run_id"])
    embed(ai, "a", extra_headers={"X-Palyra-Session": "talk"})
    assert [line.kind for line in daemon.tape(f"/sessions/{said['session_id']}")][-1] == "embeddings_ended"
    # It can be gone on with, and goes whole into an export that can be proved.
    daemon.finished(daemon.send("Again.", session={"key": "talk"})["run_id"])
    embed(ai, "a", user="u1")
    ai.chat.completions.create(model="palyra", user="u1", messages=[{"role": "user", "content": "Hello."}])
    (used,) = [one for one in daemon.get("/sessions")["sessions"] if one["key"] == "v1:user:u1"]
    kinds = [line.kind for line in daemon.tape(f"/sessions/{used['session_id']}")]
    assert {"embeddings_ended", "run_completed"} <= set(kinds)
    assert all("user" not in body for body in Vectors.asked)
    export = daemon.home.path / "export.ndjson"
    palyra(daemon, "journal", "export", "--output", str(export))
    assert "embeddings_started" in export.read_text()
    daemon.stop()
    assert "Journal verified" in palyra(daemon, "journal", "verify", "--deep")


def test_nobody_sees_the_embeddings_of_somebody_else(
    new_sqlite_daemon: NewDaemon, connect: Connect, provider: int
) -> None:
    daemon = prepared(
        new_sqlite_daemon(), provider, budget='[spending.budgets.each]\nsubject = "principal"\ntokens = 6\n'
    ).start()
    ana, ben = a_token(daemon, "user:ana"), a_token(daemon, "user:ben")
    for token in (ana, ben):
        answer = connect(daemon, token=token).embeddings.with_raw_response.create(
            model="acme/vectors-1", input=["Hello."], encoding_format="float"
        )
    hers = answer.headers
    asked = {"authorization": f"Bearer {ana}"}
    for path in (
        f"/usage/why?run={hers['x-request-id']}",
        f"/why?of={hers['x-request-id']}",
        f"/sessions/{hers['x-palyra-session-id']}/tape",
    ):
        got = httpx.get(f"{daemon.address}/console/v1{path}", headers=asked, verify=False)
        assert got.status_code in (404, 400), path
        assert "user:ben" not in got.text
    mine = httpx.get(f"{daemon.address}/console/v1/usage", headers=asked, verify=False).json()
    assert mine["total"]["turns"] == 1
    # Each has a budget of its own.
    with pytest.raises(RateLimitError):
        embed(connect(daemon, token=ana), "x" * 16)
    with pytest.raises(BadRequestError):
        connect(daemon, token=ana).embeddings.create(model="acme/vectors-1", input={})
