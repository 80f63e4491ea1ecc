"""Text of strangers on a terminal: what a model, a verifier, a file or another machine wrote moves no cursor, changes
no colour or title, sets no clipboard and hides nothing (CWE-150)."""

import unicodedata

# control (ESC, CR, C1), format (bidirectional overrides and isolates, invisible letters), lone surrogates, separators
_ESCAPED = ("Cc", "Cf", "Cs", "Zl", "Zp")
_KEPT = "\t\u200c\u200d"  # the joiners shape letters in Persian and Hindi, and emoji; they reorder nothing


def printable(text: str, *, lines: bool = False) -> str:
    """The text with every such character as Python would write it: `\\x1b[31m`. A line break is one of them, because
    what follows it would pass for a line of ours; with `lines` the text consists of lines that are ours."""
    if text.isprintable():
        return text
    kept = _KEPT + "\n" if lines else _KEPT
    return "".join(
        _escape(each) if each not in kept and unicodedata.category(each) in _ESCAPED else each for each in text
    )


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
