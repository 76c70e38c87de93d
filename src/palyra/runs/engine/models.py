"""What runs need of models: which there are, how they are asked, and what may be spent on them."""

from collections.abc import Callable
from dataclasses import dataclass

from palyra.memory.prompt_assembly import PromptAssembler
from palyra.providers.model_pool import ModelPool
from palyra.providers.transport.remote_provider import RemoteProvider
from palyra.runs.services.budgets import BudgetService


@dataclass(frozen=True, slots=True)
class ModelParts:
    """The models of a daemon."""

    pool: ModelPool
    prompts: PromptAssembler
    budgets: BudgetService
    remote: Callable[[str, str], RemoteProvider]
    """Returns a provider and model by name, for requests that are passed on unchanged."""
