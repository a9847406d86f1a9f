"""Text that every file and terminal can hold."""

from hypothesis import given
from hypothesis import strategies as st

from jaxrl_vr.verifiers.text import encodable, one_line

ANY = st.text(st.characters())  # lone surrogates included


def test_lone_surrogates_are_replaced():
    assert encodable("a\ud800b\udfff𝄞") == "a\ufffdb\ufffd𝄞"
    assert encodable("é\n\x00") == "é\n\x00"


def test_one_line():
    assert one_line(" two\nlines\u2028 and\tmore ") == "two lines and more"
    assert one_line("\x1b[2J\x00\ud800") == "\ufffd[2J\ufffd\ufffd"
    assert one_line("abcdef", 6) == "abcdef"
    assert one_line("abcdefg", 6) == "abcde…"


@given(ANY)
def test_encodable_keeps_the_length_and_all_that_encodes(text):
    found = encodable(text)
    assert found.encode().decode() == found and len(found) == len(text)
    assert all(a == b or "\ud800" <= a <= "\udfff" for a, b in zip(text, found, strict=True))


@given(ANY, st.integers(1, 40))
def test_one_line_is_printable_and_short(text, limit):
    found = one_line(text, limit)
    assert found.isprintable() and len(found) <= limit and one_line(found, limit) == found
