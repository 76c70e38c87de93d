"""Runs llama.cpp in this process: model files are loaded on first use, and answer one request at a time.

All native code runs on one dedicated thread: loading, generating and unloading. So requests are answered in order,
whichever model they are for, the event loop never waits, and memory is checked for one file at a time.

The package always starts an HTTP server with each model. It listens on a socket in a folder that only this user can
enter, with a key that is never revealed, and the folder is removed before the first request, so that no other process
can connect.
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

from palyra.providers.local.gguf import GgufInvalid, read_header
from palyra.threads import Threads

MIB = 1024 * 1024
SPARE_BYTES = 192 * MIB
"""The memory of a model besides its weights and conversations: compute buffers, and its server."""
BATCH_TOKENS = 64
"""How many tokens of a prompt are processed at once. A cancelled request ends between two batches; larger batches are
hardly faster without a graphics card."""
MAX_THREADS = 16
"""Beyond this, memory bandwidth limits the speed."""
INSTALL = "pip install 'palyra[local]'"

_AVAILABLE = re.compile(r"^MemAvailable:\s+(\d+) kB$", re.MULTILINE)


class LlamaFailed(Exception):
    """A model file cannot be used; one sentence says why, and what to do."""

    def __init__(self, why: str, *, lasting: bool = False) -> None:
        super().__init__(why)
        self.lasting = lasting
        """It lasts until someone fixes it: a retry takes time and does not help."""


@dataclass(frozen=True, slots=True)
class LlamaRequest:
    """A request to a model file, in the format of OpenAI Chat Completions."""

    path: Path
    window_tokens: int
    body: bytes


class LlamaGeneration:
    """A request in progress. Output comes on the native thread."""

    def __init__(self, begun: Callable[[], None], piece: Callable[[str], None]) -> None:
        self.begun = begun
        self.piece = piece
        self._taken_back = threading.Event()

    def take_back(self) -> None:
        """Cancel the answer after the next token, or the next batch of the prompt."""
        self._taken_back.set()

    @property
    def cancelled(self) -> bool:
        """The answer is no longer needed."""
        return self._taken_back.is_set()


@dataclass(slots=True)
class _LoadedModel:
    server: Any
    window_tokens: int


class LlamaRuntime:
    """The loaded model files, and the thread that they run on."""

    def __init__(self) -> None:
        self._thread: Threads | None = None
        self._loaded: dict[Path, _LoadedModel] = {}
        """The most recently used come last."""
        self._open: set[LlamaGeneration] = set()

    def ask(self, question: LlamaRequest, llama_generation: LlamaGeneration) -> Future[None]:
        """Queue a request; the future fails with `LlamaFailed`."""
        if self._thread is None:
            self._thread = Threads(1, name="llama")
        self._open.add(llama_generation)
        answered = self._thread.submit(self._answer, question, llama_generation)
        answered.add_done_callback(lambda _: self._open.discard(llama_generation))
        return answered

    async def close(self) -> None:
        """Cancel what is in progress, and unload every model."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        for llama_generation in tuple(self._open):
            llama_generation.take_back()
        try:
            await asyncio.wrap_future(thread.submit(self._loaded.clear))
        finally:
            thread.shutdown(wait=False)

    def _answer(self, question: LlamaRequest, llama_generation: LlamaGeneration) -> None:
        if llama_generation.cancelled:
            return
        server = self._ready(question)
        llama_generation.begun()

        def said(piece: str) -> bool:
            if not llama_generation.cancelled:
                llama_generation.piece(piece)
            return llama_generation.cancelled

        try:
            server.handle_chat_completions(question.body.decode(), said)
        except (RuntimeError, ValueError) as error:
            raise LlamaFailed(f"The model file {question.path} cannot answer this: {_line(error)}.") from error

    def _ready(self, question: LlamaRequest) -> Any:
        loaded = self._loaded.pop(question.path, None)
        if loaded is None or loaded.window_tokens != question.window_tokens:
            del loaded
            loaded = _LoadedModel(self._load(question.path, question.window_tokens), question.window_tokens)
        self._loaded[question.path] = loaded
        return loaded.server

    def _load(self, path: Path, window_tokens: int) -> Any:
        try:
            import xllamacpp
        except ModuleNotFoundError as error:
            raise LlamaFailed(
                f"Local models need a package that is not installed. Install it: {INSTALL}.", lasting=True
            ) from error
        except ImportError as error:
            raise LlamaFailed(
                f"The package for local models cannot be loaded: {_line(error)}. If a system library is missing, "
                "install it (libgomp on Debian: apt-get install libgomp1).",
                lasting=True,
            ) from error
        try:
            head = read_header(path)
        except GgufInvalid as error:
            raise LlamaFailed(
                f"The model file {path} {error}. Set path to a complete GGUF file that the daemon may read.",
                lasting=True,
            ) from error
        window_bytes = window_tokens * head.token_bytes
        # The same amount is used to cache earlier conversations: processing them again takes far longer.
        self._make_room(path, head.size + 2 * window_bytes + SPARE_BYTES)
        folder = tempfile.mkdtemp(prefix="palyra-llama-")
        try:
            server = xllamacpp.Server(_parameters(xllamacpp, path, window_tokens, window_bytes, folder))
            # The package reports ready just before it is, and a server that is released in between never ends.
            server.handle_metrics()
        except (RuntimeError, ValueError) as error:
            raise LlamaFailed(
                (
                    f"The model file {path} cannot be loaded: it is damaged, not supported by this version "
                    "of xllamacpp, or too large for the memory. Try another file, or a smaller "
                    "window_tokens."
                ),
                lasting=True,
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return server

    def _make_room(self, path: Path, needed: int) -> None:
        """Unload models until there is room for one more, least recently used first."""
        while (available := available_bytes()) is not None and available < needed:
            if not self._loaded:
                raise LlamaFailed(
                    f"The model file {path} needs about {needed // MIB} MiB of memory, and "
                    f"{available // MIB} MiB are free. Choose a smaller file, or set a smaller "
                    "window_tokens for its model."
                )
            del self._loaded[next(iter(self._loaded))]


def available_bytes() -> int | None:
    """Return the available memory; None where the system does not report it."""
    try:
        match = _AVAILABLE.search(Path("/proc/meminfo").read_text())
        group = Path("/proc/self/cgroup").read_text().strip().rpartition("::")[2]
    except OSError:
        return None
    free = [int(match[1]) * 1024] if match is not None else []
    # A service or a container may have less than the machine; each group above it may have a limit.
    folder = Path("/sys/fs/cgroup") / group.lstrip("/")
    for path in (folder, *folder.parents):
        try:
            free.append(int((path / "memory.max").read_text()) - _in_use(path))
        except (OSError, ValueError):
            continue
    return max(0, min(free)) if free else None


def _in_use(path: Path) -> int:
    """Return the memory of a control group that cannot be reclaimed at once: without its file cache."""
    facts = dict(line.split() for line in (path / "memory.stat").read_text().splitlines())
    return int((path / "memory.current").read_text()) - int(facts.get("inactive_file", 0))


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
    # One core stays free for the daemon, which executes runs meanwhile.
    threads = max(1, min(MAX_THREADS, _cores() - 1))
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.hostnames = [f"{folder}/unused.sock"]
    parameters.api_keys = [secrets.token_hex(32)]
    parameters.n_threads_http = 1
    parameters.endpoint_metrics = True
    parameters.endpoint_slots = parameters.endpoint_props = parameters.ui = False
    parameters.offline = True
    return parameters


def _cores() -> int:
    # Not every system can report which of its cores we may use.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200].rstrip(".")
