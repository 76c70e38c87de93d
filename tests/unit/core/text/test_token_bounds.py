# ruff: noqa: E501, RUF001 - texts as people write them
"""What a text can come to is never guessed too low: it was counted by real tokenizers, and the highest count is here.

Counted were cl100k, o200k, Claude's published one, Qwen's, Mistral's and SmolLM2's.
"""

import time

import pytest

from palyra.core.text.token_bounds import SLICE, max_tokens

COUNTED = [
    (
        "English",
        "The committee has not yet decided whether the new bridge will be opened to traffic before the winter, and nobody seems to know why.",
        26,
    ),
    (
        "German",
        "Die Geschäftsführung übernimmt keine Gewähr für die Richtigkeit der Angaben; Schadensersatzansprüche sind ausgeschlossen.",
        51,
    ),
    ("Polish", "Wczoraj poszliśmy z przyjaciółmi do nowej restauracji i czekaliśmy ponad godzinę na wolny stolik.", 44),
    ("Russian", "Вчера мы с друзьями ходили в новый ресторан и ждали свободного столика больше часа.", 61),
    ("Arabic", "ذهبت أمس مع أصدقائي إلى مطعم جديد وانتظرنا أكثر من ساعة.", 58),
    ("Hindi", "कल मैं अपने दोस्तों के साथ बाज़ार गया था और वहाँ हमने बहुत सारी चीज़ें खरीदीं।", 87),
    ("Thai", "เมื่อวานนี้ฉันไปร้านอาหารใหม่กับเพื่อนและต้องรอนานกว่าหนึ่งชั่วโมง", 123),
    ("Chinese", "昨天晚上我和朋友去了一家新开的火锅店，味道非常好，但是排队排了一个多小时。", 63),
    ("Japanese", "昨日は友達と一緒に新しいラーメン屋に行きましたが、とても混んでいて一時間以上待ちました。", 74),
    ("Korean", "어제 친구와 함께 새로 생긴 식당에 갔는데 줄이 너무 길어서 한 시간 넘게 기다렸습니다.", 100),
    ("emoji", "🙂😀🚀🎉👨\u200d👩\u200d👧\u200d👦🏳️\u200d🌈👍🏽🥑🧑\u200d💻❤️🔥✨🫠🛸🪐🦄🇩🇪🇨🇿", 88),
    (
        "Python",
        'def area(width: float, height: float) -> float:\n    if width < 0 or height < 0:\n        raise ValueError(f"negative: {width=} {height=}")\n    return width * height\n',
        51,
    ),
    (
        "minified JavaScript",
        '!function(e,t){"use strict";for(var n=0;n<e.length;n++){var r=e[n];t&&r.id===t.id?o.push(r):delete i[r.k]}return o}(a,b);',
        66,
    ),
    (
        "JSON",
        '{"items":[{"id":7919,"name":"red lamp","price":19.99,"tags":["home","light"],"sold":true},{"id":15838,"name":"desk","price":249.5,"tags":[],"sold":false}]}',
        70,
    ),
    (
        "digits",
        "31415926535897932384626433832795028841971693993751058209749445923078164062862089986280348253421170679",
        102,
    ),
    ("table of numbers", "12.5,883.017,4410.9,0.003\n99.1,17.204,86.75,1024.6\n", 52),
    ("hex", "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881", 59),
    (
        "hex apart",
        "a1 fc e4 36 38 54 ff 88 8c ff 4b 8e 78 75 d6 00 c2 68 23 90 41 2a 8c f7 9b 37 d0 b1 11 48 b0 fa",
        83,
    ),
    ("UUIDs", "9f1c5b1e-3d27-4c61-a7a0-0d6b8e2f4c13\n1b4e28ba-2fa1-41d2-883f-0016d3cca427\n", 71),
    ("base64", "WuYlZl8+C9CgZe0HpBmJ5AJbedE5MKKoxX1rQyUiZwfZVqCC0ekbTZank1Yt+Y/QPJ3PdDyce04wVdT58JugFQ==", 77),
    ("unbroken letters", "xqvzkjwpfhgmbtrydlcnsoieuaqzxjkvwpyfgb", 25),
]
TEXTS = {kind: (text, tokens) for kind, text, tokens in COUNTED}


@pytest.mark.parametrize(("text", "tokens"), TEXTS.values(), ids=TEXTS)
def test_no_tokenizer_counts_more_and_none_that_counts_most_counts_far_less(text: str, tokens: int) -> None:
    assert tokens <= max_tokens(text) <= 2.2 * tokens


@pytest.mark.parametrize(("text", "tokens"), TEXTS.values(), ids=TEXTS)
def test_what_stands_within_a_long_text_counts_as_much_as_by_itself(text: str, tokens: int) -> None:
    prose, found = TEXTS["English"][0] * 40, text * (2 * SLICE // len(text.encode()) + 1)
    counted = TEXTS["English"][1] * 40 + tokens * (len(found) // len(text))
    assert max_tokens(f"{prose} {found} {prose}") >= counted


def test_nothing_is_nothing() -> None:
    assert max_tokens("") == 0


def test_half_a_character_is_counted_too() -> None:
    assert max_tokens("\ud83d") >= 1


def test_it_is_no_work() -> None:
    text = (TEXTS["English"][0] + TEXTS["Chinese"][0] + TEXTS["JSON"][0]) * 200
    begun = time.process_time()
    max_tokens(text)
    assert (time.process_time() - begun) / (len(text.encode()) / 1024) < 100e-6
