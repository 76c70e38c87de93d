"""Models that insist on taking turns are shown a conversation in which everybody does."""

from msgspec import structs

from palyra.core.model.prompt import Image
from palyra.providers.dialects.openai import DIALECT
from palyra.providers.dialects.openai_roles import SEEN
from tests.unit.providers.conversation import a_call, a_prompt, assistant, result, user
from tests.unit.providers.reading import sent, target_of

OPEN = target_of(DIALECT, "qwen2.5")
MISTRAL = target_of(DIALECT, "mistral-large-latest")


def test_messages_of_a_person_in_a_row_are_one() -> None:
    prompt = a_prompt("One.", "Two.", assistant("Three."), "Four.", "Five.", tools=())

    assert sent(DIALECT, prompt, OPEN)["messages"] == [
        {"role": "user", "content": "One.\n\nTwo."},
        {"role": "assistant", "content": "Three."},
        {"role": "user", "content": "Four.\n\nFive."},
    ]


def test_their_pictures_stay_where_they_were() -> None:
    pictured = structs.replace(user("See."), images=(Image(digest="d", media_type="image/png", size=1),))
    prompt = structs.replace(a_prompt("One.", pictured, "Two.", tools=()), images={"d": b"p"})

    (message,) = sent(DIALECT, prompt, target_of(DIALECT, "gpt-4o"))["messages"]

    assert [part["type"] for part in message["content"]] == ["text", "text", "image_url", "text"]


def test_behind_the_results_of_tools_mistral_speaks_before_a_person_does() -> None:
    prompt = a_prompt("One.", assistant(calls=(a_call("time.now"),)), result("12:00"), "Two.")

    assert [message["role"] for message in sent(DIALECT, prompt, OPEN)["messages"]] == [
        "user",
        "assistant",
        "tool",
        "user",
    ]
    roles = [(message["role"], message["content"]) for message in sent(DIALECT, prompt, MISTRAL)["messages"]]
    assert roles[2:] == [("tool", "12:00"), ("assistant", SEEN), ("user", "Two.")]
