"""How a person names things."""

import pytest

from palyra.cli.named import EndingUnknown, IdUnclear, by_ending, door, is_ending

IDS = ["01M7G2GAQP1RGGD8K4CPZ5EYXJ", "01M7G2G5N045GWRC9P6MRMQY2Q", "01M7G2G0QFNV81YDADXYF8XY2Q"]


def test_an_id_is_named_by_its_end() -> None:
    assert by_ending("z5eyxj", IDS) == IDS[0]
    assert by_ending("6MRMQY2Q", IDS) == IDS[1]


def test_what_ends_no_id_is_refused() -> None:
    with pytest.raises(EndingUnknown, match='No recent id ends with "ABCDEF"'):
        by_ending("ABCDEF", IDS)


def test_an_end_that_several_ids_have_is_not_guessed_at() -> None:
    with pytest.raises(IdUnclear, match="2 ids end with"):
        by_ending("Y2Q", IDS)


@pytest.mark.parametrize("name", ["last", IDS[0], "notes.txt", "a-long-key"])
def test_words_paths_and_whole_ids_are_no_ends(name: str) -> None:
    assert not is_ending(name)


def test_a_door_is_told_in_words_and_an_unknown_one_as_it_is() -> None:
    assert door("grpc") == "the command line (grpc)"
    assert door("telegram:ops") == "telegram:ops"
