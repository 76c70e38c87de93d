"""The program that runs WebAssembly modules, alone in a process that can be killed.

It is started as a script with the folder of the wasmtime package as its argument. Its input is one order after
another: three lengths, then as many bytes of JSON, of the module, and of the module's input. The module comes
uncompiled or as compiled before. It answers with two messages, each a length and as many bytes of JSON: one when the
module is compiled, followed by the code if it is new, and one when it has ended, followed by what it wrote. It ends
after a while without an order, and when its input closes.

A module gets what the order lists: arguments, an input, two outputs, and folders. It has no network, no environment
and no other files; it has clocks and random numbers.
"""

import json
import os
import select
import signal
import struct
import sys
import threading
import time
from collections import OrderedDict
from typing import Any

IDLE_SECONDS = 30.0
MAX_MODULES = 8
"""Compiled and kept for the next order."""
ADDRESS_BYTES = 8 << 30
"""4 GiB are reserved for a module's memory, whatever it uses; the rest is for compiling."""
OPEN_FILES = 256
FILE_BYTES = 256 << 20
"""The largest file that a module may write."""
TABLE_ELEMENTS = 100_000
TABLES = 8
INSTANCES = 1
MEMORIES = 1
MAX_CHARS = 500
"""For a text about a module."""
WASI = "wasi_snapshot_preview1"
START = "_start"
HEADER = struct.Struct(">III")
LENGTH = struct.Struct(">I")
DIE_WITH_PARENT = 1

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def main() -> None:
    """Execute orders until there are none."""
    _limit()
    replies = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    sys.path.append(sys.argv[1])
    host = ModuleHost()
    while select.select([0], [], [], IDLE_SECONDS)[0]:
        header = _read(HEADER.size)
        if header is None:
            return
        parts = [_read(length) for length in HEADER.unpack(header)]
        order, module, supplied_data = parts
        if order is None or module is None or supplied_data is None:
            return
        for message, after in host.obey(json.loads(order), module, supplied_data):
            data = json.dumps(message).encode()
            _write(replies, LENGTH.pack(len(data)) + data + after)


class ModuleHost:
    """Compiles modules and runs them, one at a time."""

    def __init__(self) -> None:
        import wasmtime

        self._wasm = wasmtime
        settings = wasmtime.Config()
        settings.consume_fuel = True
        settings.epoch_interruption = True
        settings.wasm_threads = False
        settings.wasm_memory64 = False
        settings.parallel_compilation = False
        self._engine = wasmtime.Engine(settings)
        self._linker = wasmtime.Linker(self._engine)
        self._linker.define_wasi()
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def obey(self, order: dict[str, Any], module: bytes, data: bytes) -> Any:
        """Yield messages, each with the bytes that follow it."""
        is_new = order["digest"] not in self._compiled and not order["is_compiled"]
        try:
            compiled = self._compile(order["digest"], module, is_compiled=order["is_compiled"])
        except self._wasm.WasmtimeError as error:
            # Code that another version has compiled is refused; the module itself is then requested.
            yield ({"stale": True} if order["is_compiled"] else {"fault": _last_line(error)}), b""
            return
        if fault := self._unfit(compiled):
            yield {"fault": fault}, b""
            return
        code = bytes(compiled.serialize()) if is_new and order["code_bytes"] else b""
        code = code if len(code) <= order["code_bytes"] else b""
        yield {"compiled": len(code)}, code
        if order["run"]:
            yield self._run(order, compiled, data)

    def _compile(self, digest: str, module: bytes, *, is_compiled: bool) -> Any:
        if digest not in self._compiled:
            make = self._wasm.Module.deserialize if is_compiled else self._wasm.Module
            self._compiled[digest] = make(self._engine, module)
            if len(self._compiled) > MAX_MODULES:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(digest)
        return self._compiled[digest]

    def _unfit(self, compiled: Any) -> str:
        """Return why a module cannot be run at all, or nothing."""
        for requested in compiled.imports:
            if requested.module != WASI:
                name = _plain(f"{requested.module}.{requested.name}")
                return f"it imports {name}, and only {WASI} is available to modules"
        starts = [one.type for one in compiled.exports if one.name == START]
        if not starts or not isinstance(starts[0], self._wasm.FuncType) or starts[0].params or starts[0].results:
            return (
                f"it exports no function {START} without parameters: build it as a WASI command, with a main function"
            )
        return ""

    def _run(self, order: dict[str, Any], compiled: Any, data: bytes) -> tuple[dict[str, Any], bytes]:
        wasm = self._wasm
        out, err = OutputHead(order["output_bytes"]), OutputHead(order["output_bytes"])
        document: dict[str, Any] = {"exit_code": None, "stopped": "", "trap": ""}
        opened: list[int] = []
        store = wasm.Store(self._engine)
        timer = threading.Timer(order["seconds"], self._engine.increment_epoch)
        began = time.monotonic()
        try:
            store.set_limits(
                memory_size=order["memory_bytes"],
                table_elements=TABLE_ELEMENTS,
                instances=INSTANCES,
                tables=TABLES,
                memories=MEMORIES,
            )
            store.set_fuel(order["fuel"])
            store.set_epoch_deadline(1)
            wasi = wasm.WasiConfig()
            wasi.argv = order["argv"]
            opened.append(_input(wasi, data))
            # Too much output ends the module at its next step, not by an error that it could ignore.
            out.full = self._engine.increment_epoch
            wasi.stdout_custom = out.add
            wasi.stderr_custom = err.add
            for folder in order["folders"]:
                opened.append(_open_folder(folder["path"]))
                wasi.preopen_dir(_path_of(opened[-1], folder["path"]), folder["name"], folder["writable"])
            store.set_wasi(wasi)
            timer.start()
            instance = self._linker.instantiate(store, compiled)
            exports = instance.exports(store)
            start = exports[START]
            assert isinstance(start, wasm.Func)
            try:
                start(store)
                document["exit_code"] = 0
            finally:
                memory = exports.get("memory")
                document["memory_bytes"] = memory.data_len(store) if isinstance(memory, wasm.Memory) else 0
        except wasm.ExitTrap as end:
            document["exit_code"] = end.code
        except wasm.Trap as trap:
            if trap.trap_code is wasm.TrapCode.OUT_OF_FUEL:
                document["stopped"] = "fuel"
            elif trap.trap_code is wasm.TrapCode.INTERRUPT:
                document["stopped"] = "output" if out.left_out else "time"
            elif trap.trap_code is not None:
                document["trap"] = trap.trap_code.name.lower().replace("_", " ")
            else:
                document["trap"] = _last_line(trap)
        except wasm.WasmtimeError as error:
            document["trap"] = _last_line(error)
        except OSError as error:
            document["folder"] = f"{error.filename}: {error.strerror}"
        finally:
            # A late tick would end the next module.
            timer.cancel()
            if timer.ident is not None:
                timer.join()
            document["fuel"] = order["fuel"] - store.get_fuel()
            store.close()
            for descriptor in opened:
                os.close(descriptor)
        document["milliseconds"] = round((time.monotonic() - began) * 1000)
        document["stdout"], document["stderr"] = [len(out.data), out.left_out], [len(err.data), err.left_out]
        return document, bytes(out.data + err.data)


class OutputHead:
    """The start of an output."""

    def __init__(self, limit: int) -> None:
        self.data = bytearray()
        self.left_out = 0
        self.full: Any = None
        self._limit = limit

    def add(self, piece: bytes) -> None:
        """Add the next piece as far as there is room."""
        room = self._limit - len(self.data)
        self.data += piece[:room]
        if len(piece) > room:
            self.left_out += len(piece) - room
            if self.full is not None:
                self.full()


def _input(wasi: Any, data: bytes) -> int:
    """Make these bytes the module's input; return what to close when it has ended."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("input")
        _write(descriptor, data)
        wasi.stdin_file = f"/proc/self/fd/{descriptor}"
        return descriptor
    import tempfile

    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        wasi.stdin_file = file.name
        return os.dup(file.fileno())


def _open_folder(path: str) -> int:
    """Open a folder through no link, so that what was granted is what is opened."""
    here = os.open("/", _FOLDER)
    for name in path.split("/"):
        if not name:
            continue
        try:
            below = os.open(name, _FOLDER, dir_fd=here)
        except OSError as error:
            raise OSError(error.errno, error.strerror, path) from None
        finally:
            os.close(here)
        here = below
    return here


def _path_of(descriptor: int, path: str) -> str:
    return f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else path


def _last_line(error: Exception) -> str:
    """Return the innermost cause of an error, without the trace through the module."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and "<unknown>!" not in line]
    text = lines[-1] if lines else type(error).__name__
    return _plain(text.split(": ", 1)[-1] if text[:1].isdigit() else text)


def _plain(text: str) -> str:
    """Return a text, of which a module may have chosen parts, in printable characters only."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:MAX_CHARS])


def _read(length: int) -> bytes | None:
    """Return this many bytes of the input, None if it ends before."""
    data = bytearray()
    while len(data) < length:
        piece = os.read(0, min(length - len(data), 1 << 20))
        if not piece:
            return None
        data += piece
    return bytes(data)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _limit() -> None:
    """Make sure that the process does not outlive the daemon or exhaust the machine."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, OPEN_FILES))
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    if sys.platform == "linux":
        import ctypes

        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_BYTES, ADDRESS_BYTES))
        _be_the_first_to_go()
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)


def _be_the_first_to_go() -> None:
    """Make the kernel end this process, and not the daemon, if the machine runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
            file.write(b"1000")
    except OSError:
        pass  # not every kernel supports this


if __name__ == "__main__":
    main()
