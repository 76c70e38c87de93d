"""The picture in the README shows what the command line says now."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs/conversation.svg"


def test_the_picture_shows_a_conversation_as_it_is_now() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts/picture", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)


def test_the_picture_shows_an_approval_and_says_so_in_words() -> None:
    picture = ElementTree.parse(PICTURE).getroot()
    texts = ["".join(part.itertext()) for part in picture]
    assert any("asks for approval" in text for text in texts if text)
    assert any(text.startswith("  Allow? ") and text.endswith(": yes") for text in texts)
    assert PICTURE.name in (ROOT / "README.md").read_text()
