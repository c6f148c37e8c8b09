"""A packed message that changed on its way is refused, and not judged."""

from __future__ import annotations

import base64

import pytest

import support.results as made
from nodegauge_contract.wire.codec import PREFIX, NotAResult, decode, encode_message, wrap


@pytest.mark.parametrize("position", [0, -1], ids=["checksum", "numbers"])
def test_one_changed_byte_is_found(position: int) -> None:
    """In the checksum, and in the numbers behind the deflated text, whose every value would decode."""
    message = encode_message(made.instrumented(made.h100()))
    assert message.startswith(PREFIX)
    packet = bytearray(base64.b85decode(message.removeprefix(PREFIX)))
    packet[position] ^= 1
    with pytest.raises(NotAResult, match="checksum does not match"):
        decode(PREFIX + base64.b85encode(packet).decode())


def test_a_message_without_its_end_says_that_it_is_cut_off() -> None:
    """So people look for what shortened it."""
    packet = base64.b85decode(wrap(b'{"schema": "a text that is long enough"}').removeprefix(PREFIX))
    with pytest.raises(NotAResult, match="cut off"):
        decode(PREFIX + base64.b85encode(packet[:-6]).decode())
