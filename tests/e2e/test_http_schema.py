"""The HTTP door under requests made from its own OpenAPI document: no 500, and no answer that the document denies."""

import json
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.e2e.conftest import NewDaemon
from tests.support.daemon import Daemon

CHECKS = [not_a_server_error, response_schema_conformance, content_type_conformance, status_code_conformance]
EXAMPLES = settings().max_examples // 16
"""Of each kind for each operation: six in every run, as there are two kinds and more than sixty operations."""


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_no_request_breaks_the_door_or_its_word(new_sqlite_daemon: NewDaemon) -> None:
    daemon = new_sqlite_daemon()
    daemon.start()
    document = httpx.get(f"{daemon.address}/openapi.json", verify=False).json()
    found: Any = schemathesis.openapi.from_dict(document).get_all_operations()
    operations = [result.ok() for result in found]
    tried = [operation for operation in operations if "event-stream" not in json.dumps(operation.definition.raw)]
    for operation in tried:
        _try(daemon, operation, GenerationMode.POSITIVE)
        # Without parameters and a body there is nothing that could be wrong.
        if operation.body or any(True for _ in operation.iter_parameters()):
            _try(daemon, operation, GenerationMode.NEGATIVE)
    assert len(tried) > 20
    assert httpx.get(f"{daemon.address}/readyz", verify=False).status_code == 200
    assert daemon.verify().ok


def _try(daemon: Daemon, operation: Any, mode: GenerationMode) -> None:
    strategy: st.SearchStrategy[Any] = operation.as_strategy(generation_mode=mode)

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=strategy)
    def probe(case: Any) -> None:
        headers = {"authorization": f"Bearer {daemon.token}"}
        case.call_and_validate(base_url=daemon.address, headers=headers, checks=CHECKS, timeout=60)

    probe()
