"""Channels: their families, and several of them."""

from palyra.core.channel import families, join


def test_a_channel_belongs_to_what_its_name_begins_with() -> None:
    assert families("http") == ()
    assert families("telegram:ops") == ("telegram",)
    assert families("slack:acme:ops") == ("slack", "slack:acme")


def test_every_channel_is_named_once_in_the_order_of_use() -> None:
    assert join(("grpc",), ("http",), ("grpc",)) == ("grpc", "http")
    assert join(()) == ()
