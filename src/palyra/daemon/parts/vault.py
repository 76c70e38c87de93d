"""Builds the vault of a daemon: the services that store secrets and seal them."""

from dataclasses import dataclass

from palyra import config
from palyra.daemon.parts.journal_setup import OWNER
from palyra.home import Home
from palyra.journal.engines.base import Engine
from palyra.journal.vault.vault_key import VaultKeySource
from palyra.runs.services.sealing import SecretSealer
from palyra.runs.services.secrets import SecretService, UsedSecrets
from palyra.runs.services.settings_secrets import SettingsSecrets
from palyra.runs.system import System


@dataclass(frozen=True, slots=True)
class VaultParts:
    """Secrets: those that people store, those that are sealed on tapes, and those that the settings name."""

    secrets: SecretService
    sealer: SecretSealer
    settings_secrets: SettingsSecrets


def build_vault(home: Home, system: System, engine: Engine, used: UsedSecrets) -> VaultParts:
    """Return the services of the vault; its key is read or created at the first use."""
    key = VaultKeySource(home.vault_key, reference=config.references(system.config.now).get("vault.key"))
    secrets = SecretService(engine, key, clock=system.clock, used=used)
    sealer = SecretSealer(engine, key, clock=system.clock, used=used)
    return VaultParts(secrets, sealer, SettingsSecrets(home, owner=OWNER, secrets=secrets, used=used))
