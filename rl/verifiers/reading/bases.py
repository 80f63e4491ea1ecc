"""Numerals that name their base: 4210_5."""

import re

_WORDS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_BASES = {word: base for base, word in enumerate(_WORDS, start=2)} | {"sixteen": 16}
_NAMED = {"binary": 2, "octal": 8, "decimal": 10, "hexadecimal": 16}
_BASE = rf"[0-9]+|{'|'.join(_BASES)}"
_TEXT = r"\\(?:text|mathrm|textbf|mbox)\s*\{\s*"
_NUMERAL = (
    rf"(?P<sign>-?)\s*(?:{_TEXT})?\(?\s*(?:{_TEXT})?(?P<digits>[0-9A-Z]+(?:\.[0-9A-Z]+)?)\s*(?:\}})?\s*\)?\s*(?:\}})?"
)
_SUBSCRIPT = rf"_\s*\{{?\s*\(?\s*(?:{_TEXT})?\(?\s*(?:base(?:\s|\}})+)?(?P<base>{_BASE})\s*\)?\s*\}}?\s*\)?\s*\}}?"
_BEHIND = rf"(?:\s|~|\\[,;:! ])*\(?\s*(?:{_TEXT})?\(?\s*(?:in\s+)?base(?:\s|~|\\ |\}})+(?P<named>{_BASE})\s*\)?\s*\}}?"
_NAME = re.compile(r"\A\s*[A-Za-z]\s*=")
_WRITTEN = re.compile(rf"\s*{_NUMERAL}\s*(?:{_SUBSCRIPT}|{_BEHIND})?\s*\.?\s*")


def numeral(latex: str) -> tuple[str, int] | None:
    """The digits of a numeral and its base, 0 where it names none; None of anything else."""
    found = _WRITTEN.fullmatch(" ".join(latex.split()))  # many blanks would match in many ways
    if found is None:
        return None
    digits = found["sign"] + (found["digits"].lstrip("0") or "0")
    if (base := found["base"] or found["named"]) is not None:
        return digits, _BASES.get(base) or int(base)
    return digits, 0


def _is_in_base(digits: str, base: int) -> bool:
    """Whether these are digits of that base: those of P_1 and S_5 are names."""
    try:
        return base > 1 and all(int(part, base) >= 0 for part in digits.removeprefix("-").split(".") if part)
    except ValueError:
        return False


def is_asked_in(prompt: str, base: int) -> bool:
    """Whether a problem names the base: base 5, base five, base $5$, binary."""
    words = "|".join([str(base), *(word for word, of in _BASES.items() if of == base)])
    kinds = "|".join(word for word, of in _NAMED.items() if of == base)
    either = rf"\bbase[\s~-]+\$?\s*(?:{words})\b" + (rf"|\b(?:{kinds})\b" if kinds else "")
    return re.search(either, prompt, re.IGNORECASE) is not None


def same_numeral(wanted: str, stated: str, prompt: str) -> bool | None:
    """Whether both are one numeral in one base, which the problem may name instead of the answer; None where the target
    names none, or the answer is something else."""
    ours, stated = numeral(wanted), _NAME.sub("", stated)
    if ours is None or (theirs := numeral(stated)) is None:
        return None
    if not ours[1] and theirs == (ours[0], 10) and _is_in_base(*theirs):  # of one in base 10 that says so
        named = [base for base in range(2, 37) if is_asked_in(prompt, base)]
        return True if 10 in named or not named else None
    if not _is_in_base(*ours):
        return None
    implied = ours[1] if is_asked_in(prompt, ours[1]) else 10
    return ours[0] == theirs[0] and (theirs[1] or implied) == ours[1]
