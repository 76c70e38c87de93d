"""Small modules that misbehave, or show what a module can reach, written in the text format of WebAssembly."""

from functools import cache

WASI = "wasi_snapshot_preview1"
_CALL = "(param i32 i32 i32 i32) (result i32)"


@cache
def built(text: str) -> bytes:
    """Return the module that a text stands for."""
    import wasmtime

    return bytes(wasmtime.wat2wasm(text))


def module(body: str, *, imports: str = "", memory: str = "1", data: str = "") -> bytes:
    return built(
        f'(module {imports} (memory (export "memory") {memory}) {data} (func (export "_start") (local $n i32) {body}))'
    )


def imported(name: str, kind: str = _CALL) -> str:
    return f'(import "{WASI}" "{name}" (func ${name} {kind}))'


LOOPS = module("(loop $on (br $on))")
TRAPS = module("unreachable")
RECURSES = built('(module (func $f (call $f)) (func (export "_start") (call $f)))')
GROWS = module(
    "(loop $on (br_if $on (i32.ne (memory.grow (i32.const 16)) (i32.const -1)))) unreachable",
)
IMPORTS = built('(module (import "env" "system" (func)) (func (export "_start")))')
NO_START = built('(module (func (export "run")))')
WIDE_TABLE = built('(module (table 1000000 funcref) (func (export "_start")))')
LARGE_MEMORY = module("", memory="16000")
FLOODS = module(
    "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 60000))"
    " (loop $on (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8))) (br $on))",
    imports=imported("fd_write"),
)
SLEEPS = module(
    "(i32.store (i32.const 16) (i32.const 1)) (i64.store (i32.const 24) (i64.const 3600000000000))"
    " (drop (call $poll_oneoff (i32.const 0) (i32.const 128) (i32.const 1) (i32.const 256)))",
    imports=imported("poll_oneoff"),
)
ECHOES = module(
    "(i32.store (i32.const 0) (i32.const 64)) (i32.store (i32.const 4) (i32.const 60000))"
    " (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1) (i32.const 4)))"
    " (drop (call $fd_write (i32.const 1) (i32.const 0) (i32.const 1) (i32.const 8)))",
    imports=imported("fd_read") + imported("fd_write"),
)
"""Writes what it reads."""


def exits(code: int) -> bytes:
    return module(f"(call $proc_exit (i32.const {code}))", imports=imported("proc_exit", "(param i32)"))


def opens(path: str, *, create: bool = False) -> bytes:
    """Return a module that opens a path below its first folder; it exits with the errno of WASI, 0 if it could."""
    # Rights to read, or to read and write; O_CREAT is 1.
    rights, flags = (66, 1) if create else (2, 0)
    return module(
        f"(call $proc_exit (call $path_open (i32.const 3) (i32.const 1) (i32.const 64) (i32.const {len(path.encode())})"
        f" (i32.const {flags}) (i64.const {rights}) (i64.const {rights}) (i32.const 0) (i32.const 0)))",
        imports=imported("proc_exit", "(param i32)")
        + imported("path_open", "(param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)"),
        data=f'(data (i32.const 64) "{path}")',
    )
