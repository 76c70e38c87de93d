"""The fixed answers of the built-in helper."""

from palyra.core.model.prompt import Message, Role
from palyra.core.tool import ToolSpec
from palyra.providers.embedded.arithmetic import CannotCalculate, work_out
from palyra.providers.embedded.intents import Calculate, Meet, Recall, Say, Topic, Which
from palyra.providers.embedded.quoting import quote
from palyra.providers.embedded.topics import name_in

SHOWN_MESSAGES = 10

_ABILITIES = """\
- tell the time: "what time is it in Tokyo?"
- list files: "list files", "what is in the docs folder?"
- read a file: "read notes.txt", "lines 10 to 20 of 'my notes.txt'"
- find text or files: "search for invoice", "find report.pdf"
- recall this conversation: "what was my first message?", "did I mention Lisbon?"
- write a note, after you have agreed: "write a note: buy milk", "add 'call Ana' to todo.txt"
- small sums: "what is 12 * 7?"
- hand a task to another agent: "delegate: what time is it in Paris?\""""

_FIXED = {
    Topic.GREETING: (
        "Hello. I am Palyra's built-in helper: a few fixed rules, no language model. "
        'I can tell the time, look into your files and recall this conversation. Say "help" for the whole list.\n'
        'Shall I write a note? Say "write a note: Palyra works", and you will see how I ask before I change anything.'
    ),
    Topic.MOOD: 'All is well here, thank you. I am a small program, so that is all I can say about it. Try "help".',
    Topic.THANKS: "You are welcome.",
    Topic.FAREWELL: "Goodbye. This conversation is recorded, so you can go on with it later.",
    Topic.CONSENT: 'All right. Say "help" to see what I can do.',
    Topic.HELP: (
        f"I am the built-in helper, with fixed rules instead of a language model. This I can do:\n{_ABILITIES}\n"
        "I can not run commands or use the web; other models can, if you let them."
    ),
    Topic.IDENTITY: (
        "I am Palyra's built-in helper. I am not a language model and not a person: I follow a few fixed rules, "
        "so that Palyra answers without any key or network. "
        "I use the same tools, and leave the same records, as a model would."
    ),
    Topic.MODELS: (
        "This version knows two providers: this built-in helper, and a scripted one that plays a file, for tests and "
        "demos. Connections to real language models are not there yet, so there is no key to set and none to add."
    ),
    Topic.COMMANDS: (
        "These commands exist:\n"
        "- palyra chat: talk in the terminal\n"
        "- palyra run -m: send one message\n"
        "- palyra up, down, restart, status, logs: the daemon\n"
        "- palyra sessions: your conversations\n"
        "- palyra runs list, show, tape, attach, cancel: what was done, step by step\n"
        "- palyra approvals: what waits for your word, and your answer to it\n"
        "- palyra journal verify: check that no record was altered\n"
        "- palyra doctor: check the installation"
    ),
    Topic.WRITE: (
        "I write down what you say, after you have agreed: \"write 'Hello.' to hello.txt\" makes that the whole file, "
        '"add \'call Ana\' to todo.txt" and "write a note: buy milk" add a line. '
        "For other changes I am too simple; a language model can make them."
    ),
    Topic.REMEMBER: (
        "I keep no notes beyond this conversation, but what you write here is recorded. "
        'Ask "did I mention …?" and I will look it up.'
    ),
    Topic.WEB: "I can not use the web. I can search the files of your workspace.",
    Topic.SHELL: "I can not run commands: that is for a language model, and only when you agree.",
    Topic.PLACE: 'I do not know the time zone of that place. Name one like "time in Europe/Berlin".',
    Topic.UNKNOWN: (
        "I am the small built-in helper and only follow fixed rules, so I can not answer that. "
        f"This I can do:\n{_ABILITIES}"
    ),
}


def say(intent: Say, tools: tuple[ToolSpec, ...]) -> str:
    """Return a fixed answer."""
    if intent.topic is not Topic.TOOLS:
        return _FIXED[intent.topic]
    if not tools:
        return "No tools are available to me in this turn."
    return "These tools are available to me:\n" + "\n".join(f"- {tool.name}: {tool.description}" for tool in tools)


def meet(intent: Meet) -> str:
    """Greet a person by name."""
    return f'Nice to meet you, {quote(intent.name)}. Ask "what is my name?" later and I will look it up.'


def calculate(intent: Calculate) -> str:
    """Return the value of a calculation."""
    try:
        return f"{intent.expression.replace('**', '^').strip()} = {work_out(intent.expression)}"
    except CannotCalculate as error:
        return str(error)


def recall(intent: Recall, messages: tuple[Message, ...]) -> str:
    """Answer from the messages before the user's last one."""
    said = [message.text for message in messages if message.role is Role.USER][:-1]
    if intent.which is Which.ANSWER:
        return _last_answer(messages)
    if not said:
        return "This is your first message in what I can see of this conversation."
    match intent.which:
        case Which.FIRST:
            return f"Your first message that I can see was: {_quoted(said[0])}"
        case Which.LAST:
            return f"Before this one you wrote: {_quoted(said[-1])}"
        case Which.COUNT:
            return f"I can see {len(said) + 1} messages of yours, counting this one."
        case Which.ALL:
            return _all(said)
        case Which.NAME:
            names = [name for name in map(name_in, reversed(said)) if name]
            return f"You said that your name is {quote(names[0])}." if names else "You have not told me your name here."
        case Which.MENTION:
            return _mentioned(intent.text, said)


def _all(said: list[str]) -> str:
    lines = [f"- {_quoted(text)}" for text in said[-SHOWN_MESSAGES:]]
    head = (
        "You wrote" if len(said) <= SHOWN_MESSAGES else f"The last {SHOWN_MESSAGES} of your {len(said)} messages were"
    )
    return "\n".join([f"{head}:", *lines])


def _mentioned(text: str, said: list[str]) -> str:
    found = [message for message in said if text.lower() in message.lower()]
    if not found:
        return "No, I find nothing about that in your messages that I can see."
    times = "once" if len(found) == 1 else f"in {len(found)} messages"
    return f"Yes, {times}. You wrote: {_quoted(found[0])}"


def _last_answer(messages: tuple[Message, ...]) -> str:
    answers = [message.text for message in messages if message.role is Role.ASSISTANT and message.text.strip()]
    return f"I said: {_quoted(answers[-1])}" if answers else "I have not said anything yet."


def _quoted(text: str) -> str:
    return f'"{quote(text)}"'
