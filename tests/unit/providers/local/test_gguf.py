"""The head of a model file: what is read of it, and what is refused before native code sees it."""

import os
import struct
from pathlib import Path

import pytest

from palyra.providers.local.gguf import GgufInvalid, read_header


def text(value: str | bytes) -> bytes:
    content = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(content)) + content


def fact(name: str, value: str | int) -> bytes:
    if isinstance(value, str):
        return text(name) + struct.pack("<I", 8) + text(value)
    return text(name) + struct.pack("<II", 4, value)


def words(name: str, *values: str) -> bytes:
    return text(name) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))


def numbers(name: str, *values: int) -> bytes:
    return text(name) + struct.pack(f"<IIQ{len(values)}I", 9, 4, len(values), *values)


FACTS = (
    fact("general.architecture", "llama"),
    fact("llama.context_length", 2048),
    fact("llama.block_count", 30),
    fact("llama.embedding_length", 576),
    fact("llama.attention.head_count", 9),
    fact("llama.attention.head_count_kv", 3),
    words("tokenizer.ggml.tokens", "a", "b", "Łódź"),
    numbers("tokenizer.ggml.token_type", 1, 2, 3),
    fact("tokenizer.chat_template", "{% for message in messages %}{{ tools }}"),
)
WEIGHT = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 4, 4, 0, 64)


def a_file(folder: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def a_model(*facts: bytes, weight: bytes = WEIGHT, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, 1, len(facts)) + b"".join(facts) + weight + bytes(128)


def test_the_head_says_what_the_model_is(tmp_path: Path) -> None:
    content = a_model(*FACTS)
    head = read_header(a_file(tmp_path, content))
    assert head.size == len(content)
    assert head.trained_tokens == 2048
    assert head.token_bytes == 30 * 3 * (64 + 64) * 2
    assert "tools" in head.chat_template


def test_what_the_head_does_not_say_is_not_known(tmp_path: Path) -> None:
    head = read_header(a_file(tmp_path, a_model(fact("general.architecture", "other"))))
    assert (head.trained_tokens, head.token_bytes, head.chat_template) == (0, 0, "")


def test_the_parts_of_a_model_count_together(tmp_path: Path) -> None:
    content = a_model(*FACTS)
    first = a_file(tmp_path, content, "big-00001-of-00003.gguf")
    a_file(tmp_path, bytes(1000), "big-00002-of-00003.gguf")
    a_file(tmp_path, bytes(500), "big-00003-of-00003.gguf")
    assert read_header(first).size == len(content) + 1500


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not a GGUF file"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
        (b"GGUF", "damaged"),
        (a_model(*FACTS, version=1), "version 1"),
        (a_model(*FACTS, version=0x03000000), "version"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**63), "too long"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 1), "too long"),
        (a_model(text("x") + struct.pack("<IQ", 8, 2**63)), "damaged"),
        (a_model(text("x") + struct.pack("<IIQ", 9, 8, 2**63)), "damaged"),
        (a_model(text("x") + struct.pack("<IIQ", 9, 4, 2**62)), "damaged"),
        (a_model(text("x") + struct.pack("<IIQ", 9, 9, 1)), "damaged"),
        (a_model(text("x") + struct.pack("<I", 77)), "damaged"),
        (a_model(fact("x", 1), text(b"\xff\xfe") + struct.pack("<II", 4, 1)), "damaged"),
        (a_model(*FACTS, weight=text("w") + struct.pack("<I", 2**31)), "damaged"),
        (a_model(*FACTS, weight=text("w") + struct.pack("<IQIQ", 1, 4, 0, 2**40)), "damaged"),
        (a_model(*FACTS)[:300], "damaged"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(GgufInvalid, match=why):
        read_header(a_file(tmp_path, content))


def test_a_model_cut_anywhere_in_its_head_is_refused(tmp_path: Path) -> None:
    whole = a_model(*FACTS)
    for length in range(len(whole) - 128):
        with pytest.raises(GgufInvalid):
            read_header(a_file(tmp_path, whole[:length]))


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    with pytest.raises(GgufInvalid, match="No such file"):
        read_header(tmp_path / "missing.gguf")
    with pytest.raises(GgufInvalid, match="not a file"):
        read_header(tmp_path)
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(GgufInvalid, match="not a file"):
        read_header(tmp_path / "pipe.gguf")
