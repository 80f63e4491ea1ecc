"""Nothing that strangers wrote acts on a terminal."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.security.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J\x1b[1;31mred", r"\x1b[2J\x1b[1;31mred"),
        ("\x1b]8;;http://evil\x07click\x1b]8;;\x07", r"\x1b]8;;http://evil\x07click\x1b]8;;\x07"),  # a link
        ("\x1b]52;c;ZXZpbA==\x07", r"\x1b]52;c;ZXZpbA==\x07"),  # the clipboard
        ("\x9b31m\x9d0;title\x9c", r"\x9b31m\x9d0;title\x9c"),  # the same in one byte each
        ("all is well\rall is lost", r"all is well\rall is lost"),
        ("a\b\x7f\0", r"a\x08\x7f\x00"),
        ("end\nrlvf: run this", r"end\nrlvf: run this"),
        ("a\x85b\u2028c\u2029d", r"a\x85b\u2028c\u2029d"),
        ("\u202etxt.exe\u2066 \u200f \u061c", r"\u202etxt.exe\u2066 \u200f \u061c"),  # bidirectional
        ("\U000e0041\ufeff\u00ad", r"\U000e0041\ufeff\xad"),  # invisible
        ("\udc80", r"\udc80"),  # a byte of a file's name that is no UTF-8
    ],
)
def test_what_acts_on_a_terminal_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown


@pytest.mark.parametrize(
    "text", ["", "plain [red]text[/red]", "Ünïcödé 漢字 ١٢", "a\tb", "می‌خواهم", "👩‍👧 🏳️‍🌈", "x² → ½"]
)
def test_what_people_write_stays(text: str) -> None:
    assert printable(text) == text


def test_lines_of_ours_stay_lines() -> None:
    assert printable("one\ntwo\x1b", lines=True) == "one\ntwo\\x1b"


@given(st.text())
def test_no_character_that_acts_is_left_and_nothing_is_lost(text: str) -> None:
    shown = printable(text)
    assert {unicodedata.category(each) for each in shown if each not in "\t\u200c\u200d"}.isdisjoint(
        {"Cc", "Cf", "Cs", "Zl", "Zp"}
    )
    if text.isprintable():
        assert shown == text
    shown.encode()
