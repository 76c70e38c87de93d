"""Matches untrusted regular expressions where they can do no harm.

A hostile pattern can take practically forever on a line of thirty letters, and Python's engine blocks the
interpreter while it tries. So matching happens in a process of its own, which is killed when its time is over.
Everything here blocks; async code calls it through `asyncio.to_thread`.
"""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from palyra.core.errors import Invalid, Unavailable
from palyra.sandbox.search import regex_worker

MAX_PATTERN_CHARS = 1000
POLL_SECONDS = 0.05
MAX_REPLY_BYTES = 1024 * 1024


class RegexInvalid(Invalid):
    """The regular expression is malformed."""


class RegexTimeout(Invalid):
    """The regular expression takes too long. Use a simpler one, without repetitions inside repetitions."""


class SearchCancelled(Unavailable):
    """The search was stopped."""


class RegexProcess:
    """A process that matches one pattern. `stop` is called many times a second, and ends the work if it is true."""

    def __init__(self, pattern: str, *, ignore_case: bool, seconds: float, stop: Callable[[], bool]) -> None:
        if len(pattern) > MAX_PATTERN_CHARS:
            raise RegexInvalid(f"The regular expression is longer than {MAX_PATTERN_CHARS} characters.")
        # The time that counts is that of a real process, not that of the injected clock.
        self._deadline = time.monotonic() + seconds
        self._stop = stop
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", regex_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={},
            bufsize=0,
        )
        try:
            self._send(json.dumps({"pattern": pattern, "ignore_case": ignore_case}).encode() + b"\n")
            text = msgspec.json.decode(self._reply(), type=str | list[str])
        except BaseException:
            self.close()
            raise
        if isinstance(text, str):
            self.close()
            raise RegexInvalid(f"The regular expression is malformed: {text}.")
        self.needles = tuple(text)
        """Words of which at least one, in any case, is in every line that matches; empty if none are known."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def lines(self, content: bytes, *, limit: int) -> list[int]:
        """Return the numbers of the first matching lines of a text, counted from 0."""
        self._send(f"[{len(content)},{limit}]\n".encode() + content)
        return msgspec.json.decode(self._reply(), type=list[int])

    def close(self) -> None:
        """Kill the process, whatever it does."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def _send(self, message: bytes) -> None:
        assert self._process.stdin is not None
        descriptor = self._process.stdin.fileno()
        os.set_blocking(descriptor, False)
        rest = memoryview(message)
        while rest:
            self._await(descriptor, select.POLLOUT)
            try:
                rest = rest[os.write(descriptor, rest) :]
            except BrokenPipeError:
                raise RegexTimeout from None

    def _reply(self) -> bytes:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        reply = b""
        while not reply.endswith(b"\n"):
            self._await(descriptor, select.POLLIN)
            piece = os.read(descriptor, 65536)
            # It ended by itself: it reached one of its own limits.
            if not piece or len(reply) > MAX_REPLY_BYTES:
                raise RegexTimeout
            reply += piece
        return reply

    def _await(self, descriptor: int, event: int) -> None:
        # Not `select`, which fails for descriptors above 1,023: a daemon with many clients has them.
        waiting = select.poll()
        waiting.register(descriptor, event)
        while True:
            if self._stop():
                raise SearchCancelled
            if time.monotonic() > self._deadline:
                raise RegexTimeout
            if waiting.poll(POLL_SECONDS * 1000):
                return
