"""llama.cpp in this process: model files are loaded when they are first asked, and answer one question at a time.

Everything native happens on one thread of its own: loading, answering and letting go. So questions are answered in the
order in which they came, whichever model they are for, the event loop never waits, and no two files are weighed against
the memory at once.

The package starts an HTTP server with each model, whether one wants it or not. It is put on a socket in a folder that
only this user can enter, behind a key that nobody is told, and the folder is removed before anything is asked: what
nobody can find nobody can connect to.
"""

import asyncio
import os
import re
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palyra.providers.gguf import NotAModel, read_head
from palyra.threads import Threads

MIB = 1024 * 1024
SPARE_BYTES = 192 * MIB
"""What a model takes beside its weights and its conversations: what it calculates with, and its server."""
BATCH_TOKENS = 64
"""So many tokens of a prompt are read at once. A question that is taken back ends between two batches; larger ones make
reading hardly faster without a graphics card."""
MOST_THREADS = 16
"""Beyond it, the memory is what an answer waits for."""
INSTALL = "pip install 'palyra[local]'"

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


class LlamaFailed(Exception):
    """A model file can not be used; one sentence says why, and what to do."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting
        """It stays so until somebody mends it: to try again takes time and helps nobody."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a model file is asked, in the words of OpenAI Chat Completions."""

    path: Path
    window_tokens: int
    body: bytes


class Asked:
    """A question under way. What is said comes on the native thread."""

    def __init__(self, begun: Callable[[], None], piece: Callable[[str], None]) -> None:
        self.begun = begun
        self.piece = piece
        self._taken_back = threading.Event()

    def take_back(self) -> None:
        """Let the answer end after the next token, or the next batch of the prompt."""
        self._taken_back.set()

    @property
    def taken_back(self) -> bool:
        """Nobody waits for the answer any more."""
        return self._taken_back.is_set()


@dataclass(slots=True)
class _Loaded:
    server: Any
    window_tokens: int


class Llama:
    """The model files that are in memory, and the thread that they answer on."""

    def __init__(self) -> None:
        self._thread: Threads | None = None
        self._loaded: dict[Path, _Loaded] = {}
        """Those that were asked last come last."""
        self._open: set[Asked] = set()

    def ask(self, question: Question, asked: Asked) -> Future[None]:
        """Have a question answered when those before it are; fails with `LlamaFailed`."""
        if self._thread is None:
            self._thread = Threads(1, name="llama")
        self._open.add(asked)
        answered = self._thread.submit(self._answer, question, asked)
        answered.add_done_callback(lambda _: self._open.discard(asked))
        return answered

    async def close(self) -> None:
        """End what is under way, and let go of every model."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        for asked in tuple(self._open):
            asked.take_back()
        try:
            await asyncio.wrap_future(thread.submit(self._loaded.clear))
        finally:
            thread.shutdown(wait=False)

    def _answer(self, question: Question, asked: Asked) -> None:
        if asked.taken_back:
            return
        server = self._ready(question)
        asked.begun()

        def said(piece: str) -> bool:
            if not asked.taken_back:
                asked.piece(piece)
            return asked.taken_back

        try:
            server.handle_chat_completions(question.body.decode(), said)
        except (RuntimeError, ValueError) as error:
            raise LlamaFailed(f"The model file {question.path} can not answer this: {_line(error)}.") from error

    def _ready(self, question: Question) -> Any:
        loaded = self._loaded.pop(question.path, None)
        if loaded is None or loaded.window_tokens != question.window_tokens:
            del loaded
            loaded = _Loaded(self._load(question.path, question.window_tokens), question.window_tokens)
        self._loaded[question.path] = loaded
        return loaded.server

    def _load(self, path: Path, window_tokens: int) -> Any:
        try:
            import xllamacpp
        except ImportError as error:
            raise LlamaFailed(
                f"Local models need a package that is not installed: {INSTALL} installs it.", lasting=True
            ) from error
        try:
            head = read_head(path)
        except NotAModel as error:
            raise LlamaFailed(
                f"The model file {path} {error}: set path to a whole file in the GGUF format that the daemon may read.",
                lasting=True,
            ) from error
        window_bytes = window_tokens * head.token_bytes
        # As much again is kept of conversations that were answered before: to read them anew takes far longer.
        self._make_room(path, head.size + 2 * window_bytes + SPARE_BYTES)
        folder = tempfile.mkdtemp(prefix="palyra-llama-")
        try:
            server = xllamacpp.Server(_parameters(xllamacpp, path, window_tokens, window_bytes, folder))
            # The package says that it is ready just before it is, and a server that is let go in between never ends.
            server.handle_metrics()
        except (RuntimeError, ValueError) as error:
            raise LlamaFailed(
                f"The model file {path} can not be loaded: it is damaged, of a kind that this version of xllamacpp does"
                " not know, or larger than the memory allows; try another file, or a smaller window_tokens.",
                lasting=True,
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return server

    def _make_room(self, path: Path, needed: int) -> None:
        """Let go of models until there is room for one more, those first that were asked longest ago."""
        while (available := available_bytes()) is not None and available < needed:
            if not self._loaded:
                raise LlamaFailed(
                    f"The model file {path} needs about {needed // MIB} MiB of memory, and {available // MIB} MiB are"
                    " free: choose a smaller file, or set a smaller window_tokens for its model."
                )
            del self._loaded[next(iter(self._loaded))]


def available_bytes() -> int | None:
    """Return how much memory can still be had; None where the system does not say."""
    try:
        found = _AVAILABLE.search(Path("/proc/meminfo").read_text())
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    except OSError:
        return None
    free = [int(found[1]) * 1024] if found is not None else []
    # A service or a container may be given less than the machine has; each folder above it may hold a bound.
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    for place in (folder, *folder.parents):
        try:
            free.append(int((place / "memory.max").read_text()) - _in_use(place))
        except (OSError, ValueError):
            continue
    return max(0, min(free)) if free else None


def _in_use(place: Path) -> int:
    """Return what a control group holds that can not be had back at once: not the files that it has read."""
    facts = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
    return int((place / "memory.current").read_text()) - int(facts.get("inactive_file", 0))


def _parameters(xllamacpp: Any, path: Path, window_tokens: int, window_bytes: int, folder: str) -> Any:
    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(path)
    parameters.n_ctx = window_tokens
    parameters.n_parallel = 1
    parameters.n_batch = parameters.n_ubatch = BATCH_TOKENS
    parameters.cache_ram_mib = -(-window_bytes // MIB)
    parameters.use_jinja = True
    parameters.warmup = False
    parameters.verbosity = 0
    # One core stays free for the daemon, which has runs to carry on meanwhile.
    threads = max(1, min(MOST_THREADS, _cores() - 1))
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.hostnames = [f"{folder}/unused.sock"]
    parameters.api_keys = [secrets.token_hex(32)]
    parameters.n_threads_http = 1
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = parameters.endpoint_props = parameters.ui = False
    parameters.offline = True
    return parameters


def _cores() -> int:
    # Not every system can say which of its cores are ours.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")
