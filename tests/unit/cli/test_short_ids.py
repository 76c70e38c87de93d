"""How a person names things."""

import pytest

from palyra.cli.short_ids import IdAmbiguous, IdNotFound, describe_channel, find_by_suffix, is_id_suffix

IDS = ["01M7G2GAQP1RGGD8K4CPZ5EYXJ", "01M7G2G5N045GWRC9P6MRMQY2Q", "01M7G2G0QFNV81YDADXYF8XY2Q"]


def test_an_id_is_named_by_its_end() -> None:
    assert find_by_suffix("z5eyxj", IDS) == IDS[0]
    assert find_by_suffix("6MRMQY2Q", IDS) == IDS[1]


def test_what_ends_no_id_is_refused() -> None:
    with pytest.raises(IdNotFound, match='No recent id ends with "ABCDEF"'):
        find_by_suffix("ABCDEF", IDS)


def test_an_end_that_several_ids_have_is_not_guessed_at() -> None:
    with pytest.raises(IdAmbiguous, match="2 ids end with"):
        find_by_suffix("Y2Q", IDS)


@pytest.mark.parametrize("name", ["last", IDS[0], "notes.txt", "a-long-key"])
def test_words_paths_and_whole_ids_are_no_ends(name: str) -> None:
    assert not is_id_suffix(name)


def test_a_door_is_told_in_words_and_an_unknown_one_as_it_is() -> None:
    assert describe_channel("grpc") == "the command line (grpc)"
    assert describe_channel("telegram:ops") == "telegram:ops"
