"""What labels cost: over fifty ordinary tasks no task takes more than one question that is there for them alone."""

from tests.bench.ordinary_tasks import TASKS
from tests.bench.questions import measure


async def test_labels_cost_at_most_one_question_per_task() -> None:
    assert len(TASKS) == 50
    figures = await measure(TASKS)
    assert figures["extra_per_task_max"] <= 1
    assert figures["standing_extra_per_task_mean"] <= 1
    # A measurement that sees no price at all would measure nothing.
    assert 0 < figures["extra"] < figures["questions"]
