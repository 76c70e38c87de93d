"""The log: one line of JSON for each record, without secrets, by shape and by value."""

import json
import logging

from palyra.core.text.redaction import hide_values
from palyra.telemetry import JsonLogFormatter

KNOWN = {"github": b'hunter2-"hunter2"'}
VALUE = KNOWN["github"].decode()


def line(message: str, *args: object, **extra: object) -> dict[str, object]:
    record = logging.makeLogRecord({"msg": message, "args": args, "levelname": "INFO", "name": "test", **extra})
    written = JsonLogFormatter(lambda text: hide_values(text, [(VALUE.encode(), "github")])).format(record)
    assert "\n" not in written
    found: dict[str, object] = json.loads(written)
    return found


def test_a_known_secret_is_hidden_wherever_it_stands() -> None:
    written = line("it was %s", VALUE, answer=VALUE, parts=[1, {"deep": VALUE, VALUE: None}], count=3, odd=KNOWN)

    assert "hunter2" not in json.dumps(written)
    assert written["message"] == "it was [secret github]"
    assert written["answer"] == "[secret github]"
    assert written["parts"] == [1, {"deep": "[secret github]", "[secret github]": None}]
    assert written["count"] == 3


def test_a_known_secret_is_hidden_in_a_traceback() -> None:
    try:
        raise ValueError(f"the key {VALUE} is wrong")
    except ValueError as error:
        written = line("it failed", exc_info=(type(error), error, error.__traceback__))
    assert "hunter2" not in json.dumps(written)
    assert "[secret github] is wrong" in str(written["error"])


def test_what_looks_like_a_secret_is_hidden_too() -> None:
    assert "palyra_" + "x" * 43 not in json.dumps(line("token palyra_" + "x" * 43))
