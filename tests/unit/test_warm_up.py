"""What is loaded once the daemon serves, and that a failure of it changes nothing else."""

import sys

import pytest

from palyra.core.model.catalog import DialectName, ModelProvider
from palyra.daemon.process import warm_up
from palyra.settings import ModelSettings, Settings


def settings(**providers: ModelProvider) -> Settings:
    return Settings(model=ModelSettings(providers=providers))


def test_the_http_client_is_loaded_for_a_remote_model_alone() -> None:
    remote = ModelProvider(dialect=DialectName.OPENAI, base_url="http://localhost/v1", model="tiny")
    local = ModelProvider(dialect=DialectName.LOCAL)

    assert warm_up.modules(settings()) == warm_up.TOOL_CALL
    assert warm_up.modules(settings(file=local)) == warm_up.TOOL_CALL
    assert warm_up.modules(settings(file=local, acme=remote)) == warm_up.TOOL_CALL + warm_up.REMOTE_MODEL


async def test_a_module_that_is_not_there_is_logged_and_the_switch_interval_restored(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(warm_up, "TOOL_CALL", ("palyra.nothing",))
    usual = sys.getswitchinterval()

    await warm_up.warm_up(settings())

    assert "palyra.nothing" in caplog.text
    assert sys.getswitchinterval() == usual
