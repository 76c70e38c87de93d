"""The requests with fixed answers, or with answers from the conversation."""

import re
from functools import cache

from palyra.providers.embedded.intents import Intent, Recall, Say, Topic, Which
from palyra.providers.embedded.phrase import WordSequence

_MODEL = (
    r"(?:models?|llms?|providers?|api keys?|gpt[-\w.]*|openai|claude|anthropic|gemini|ollama|llama|mistral|chatgpt"
    r"|openrouter)"
)
_ADD = r"(?:add|use|configure|connect|set ?up|install|enable|change|switch|get|choose|select|plug in|run|talk to)"
_SAID = r"(?:said|say|asked?|write|wrote|written|told you|tell you|tell|told|typed?|sent|send)"
_MESSAGE = r"(?:messages?|questions?|requests?|inputs?|prompts?)"
_SO_FAR = r"(?: so far| until now| up to now| earlier| today| already| in this (?:chat|session|conversation))*"

_TOPICS: dict[Topic, tuple[str, ...]] = {
    Topic.GREETING: (
        r"(?:hi+|hello+|hey+|hiya|howdy|yo|greetings|hallo|good (?:morning|afternoon|evening|day))"
        r"(?: there| palyra| again| friend| you| everyone| world| hello)*",
    ),
    Topic.MOOD: (r"how are (?:you|things)(?: doing| today)*", r"how is it going", r"what is up", r"sup"),
    Topic.THANKS: (
        r"(?:many )?(?:thanks|thank you|thx|ty|cheers)(?: lot| so| very| much| you| palyra| again| for .{1,40})*",
        r"great|perfect|nice|cool|awesome|well done|good (?:job|work)|excellent|wonderful",
    ),
    Topic.FAREWELL: (
        r"(?:good ?)?(?:bye|goodbye)(?: bye| palyra| for)*|see you(?: later| soon| tomorrow)?|good ?night|farewell",
        r"ciao|quit|exit|talk to you later|later|i am done",
    ),
    Topic.CONSENT: (
        r"ok|okay|yes|no|yep|nope|sure|fine|alright|i see|got it|never ?mind|test|testing|ping|hm+|lol|wow",
    ),
    Topic.HELP: (
        r"/?help(?: with this)?|\?|usage|menu|options|examples?|instructions|i need help|(?:show|give) help|get help",
        r"what (?:else )?(?:can|could|do) you do(?: for| here| with .{1,40})?|what you can do|what you can help with",
        r"what (?:else )?can i (?:do|ask|say|try)(?: here| you| with .{1,20})*",
        r"how (?:can|could|do) you help|what are your (?:capabilities|features|skills|abilities|limits)",
        r"what are you (?:able to do|capable of|good at|good for|for)|what is (?:this|palyra) for",
        r"how (?:does|do) (?:this|it|you|palyra) work|how do i (?:use|start with|begin with) (?:this|it|you|palyra)",
        r"(?:read|open|search|find|look into)(?: my| your)?(?: files?| documents?| text| notes)?",
        r"how do i (?:get started|start|begin)|what (?:should|do) i do(?: here| next)?",
    ),
    Topic.IDENTITY: (
        r"(?:who|what) are you|(?:who|what) is this|(?:who|what) am i (?:talking|speaking|chatting) (?:to|with)",
        r"are you (?:ai|@p|bot|robot|human|person|real|alive|machine|program|language model|llm|chatgpt|gpt[-\w.]*"
        r"|claude|gemini|llama|agent|assistant|model)(?: .{1,30})?",
        r"(?:what|which) (?:ai |language )?(?:model|llm)(?: is this| are you(?: using)?| do you use| am i using)",
        r"what is your (?:name|model)|(?:introduce|describe|about) yourself|what is palyra|who (?:made|built) you",
    ),
    Topic.MODELS: (
        rf"how (?:do|can|could|would) (?:i|we|you) {_ADD} (?:.{{1,40}} )?{_MODEL}(?: .{{1,30}})?",
        rf"{_ADD} (?:to |real |better |new |different |other |another |actual |local |my )*{_MODEL}",
        rf"(?:can|could|may) (?:i|we|you|palyra) {_ADD} (?:.{{1,30}} )?{_MODEL}(?: .{{1,20}})?",
        rf"(?:do|does|can) (?:you|palyra|it|this) (?:support|work with|have) (?:.{{1,30}} )?{_MODEL}(?: .{{1,20}})?",
        r"(?:what|which) (?:other )?(?:models|providers|llms)(?: .{1,40})?",
    ),
    Topic.COMMANDS: (
        r"(?:(?:what|which|list|show) )?(?:are )?(?:your |palyra )?commands(?: .{1,40})?",
        r"how (?:do|can) i (?:stop|start|restart|quit|exit|leave|cancel|see|show|verify|check|list|find) "
        r"(?:.{1,20} )?(?:daemon|palyra|server|logs?|sessions?|runs?|tape|journal|chat|status|you|this)(?: .{1,20})?",
    ),
    Topic.TOOLS: (
        r"(?:(?:what|which|list|show) )?(?:are )?(?:your |my )?tools"
        r"(?: do you have| are there| can you use| available)?",
    ),
    Topic.REMEMBER: (r"(?:remember|memori[sz]e|note|keep in mind|do not forget) (?:that|this|to|my|i)(?: .{1,300})?",),
    Topic.SHELL: (
        r"(?:run|execute) (?:this |shell |terminal |my )*(?:command|script|program|code|bash|python|rm|ls|git|sudo|@q)"
        r"(?: .{1,300})?",
        r"(?:sudo|rm|bash|curl|wget) .{1,300}",
    ),
}

_RECALLS: dict[Which, tuple[str, ...]] = {
    Which.NAME: (r"what is my name|who am i|what my name is|my name",),
    Which.COUNT: (
        rf"how many {_MESSAGE}(?: .{{1,40}})?|how (?:often|many times) (?:have|did) i (?:written|write|ask)",
    ),
    Which.FIRST: (
        rf"(?:(?:what (?:was|is)|repeat|show|quote) )?my (?:very )?first {_MESSAGE}(?: .{{1,30}})?",
        rf"what did i first {_SAID}(?: you)?|what was first thing i {_SAID}(?: you)?",
        rf"what did i {_SAID}(?: you)? (?:at |in )?(?:very )?(?:first|beginning|start|initially)",
    ),
    Which.LAST: (
        rf"(?:(?:what (?:was|is)|repeat|show|quote) )?my (?:very )?(?:last|previous|latest|most recent) {_MESSAGE}"
        r"(?: .{1,30})?",
        rf"what (?:did|have) i (?:last )?{_SAID}(?: to you| you)?"
        r"(?: before(?: that| this)?| last| last time| previously)?",
        rf"what i {_SAID}|what was i (?:saying|asking)|what was last thing i {_SAID}(?: you)?",
    ),
    Which.ALL: (
        rf"what (?:have|did) (?:i|we) (?:{_SAID}|talked about|talk about|discussed|discuss)(?: to you| you)?{_SO_FAR}",
        r"(?:show|list) (?:my |our )?(?:messages|history|conversation|chat history)",
        r"(?:summari[sz]e|recap) (?:this |our )?(?:chat|conversation|session)",
    ),
    Which.ANSWER: (
        r"what did you (?:say|answer|reply)(?: before| last| to)?|(?:repeat|say) that|repeat yourself",
        r"(?:what was|repeat) your last (?:answer|message|reply)",
    ),
}

_MENTION = re.compile(
    r"(?:did|have) i (?:ever |already |once )?(?:mention(?:ed)?|talk(?:ed)? about|ask(?:ed)? (?:you )?about|say|said"
    r"|(?:tell|told) you about|write about|written about|bring up) (?:anything about |something about |words? )?"
    rf"(?P<text>.{{1,100}}?)(?: before| yet| to you)*{_SO_FAR}"
)
_NAME = re.compile(
    r"(?i:\bmy name(?: is|['\u2019]s)) (?P<name>[^\W\d_][\w'-]{0,30}(?: [A-Z\u00c0-\u00de][\w'-]{0,30}){0,2})"
)


@cache
def _compiled(patterns: tuple[str, ...]) -> re.Pattern[str]:
    # Built when first needed: other models never need it, and it would slow down the daemon's start.
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def read_topic(phrase: WordSequence) -> Intent | None:
    """Return what the phrase asks for, if that needs no tool."""
    text = phrase.text
    for topic, patterns in _TOPICS.items():
        if _compiled(patterns).fullmatch(text):
            return Say(topic)
    for which, patterns in _RECALLS.items():
        if _compiled(patterns).fullmatch(text):
            return Recall(which)
    if found := _MENTION.fullmatch(text):
        return Recall(Which.MENTION, phrase.value(found, "text"))
    return None


def name_in(message: str) -> str | None:
    """Return the name that the writer of a message states, if the message is about little else."""
    found = _NAME.search(message) if len(message) <= 200 else None
    return found["name"] if found else None
