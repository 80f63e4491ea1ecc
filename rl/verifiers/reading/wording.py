"""Words around a number that leave it as it is, make another number of it, or take it back."""

import re

WORDS = (
    "one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen|"
    "(?:twen|thir|for|fif|six|seven|eigh|nine)ty|half|third|quarter"
)
NUMERAL = re.compile(rf"\b(?:{WORDS}|hundred|thousand|zero)\b", re.IGNORECASE)
_ORDINAL = (
    "(?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|(?:thir|four|fif|six|seven|eigh|nine)teen"
    "|(?:twen|thir|for|fif|six|seven|eigh|nine)tie)th"
)
_POWERED = (  # units
    *("unit", "units", "foot", "feet", "inch", "inches", "meter", "meters", "metre", "metres", "yard", "yards"),
    *("mile", "miles", "centimeters", "kilometers", "cm", "km", "m", "ft"),
    *("second", "seconds", "sec", "s"),
)
_SQUARED = (
    "".join(rf"(?<!\b{unit}\s)" for unit in _POWERED) + rf"\b(?:squared|cubed)\b(?!\s+(?:{'|'.join(_POWERED)})\b)"
)
_SCALES = "hundred|thousand|(?:m|b|tr|quadr|quint)illion|dozen|lakh|crore"
OTHER_NUMBER = re.compile(  # what makes another number of the one before it, or adds one
    rf"\b(?:{_SCALES})s?\b|{_SQUARED}"
    # these are scales behind a number alone: a score, a grand total, gross income and a point are none
    r"|^\W*(?:tens\b|scores?\s+(?:and|of)\b|gross(?:\W*$|\s+of\b)|grand(?=\W*$|\s+(?:an?|per|each|of|for|in)\b))"
    rf"|\bpoint\s+(?:{WORDS}|zero|oh)\b"
    r"|\b(?:factorial|(?:doubl|tripl|quadrupl|halv)ed|mod(?:ulo)?)\b|\bpower\s+of\b|\bin\s+base\b"
    r"|^\W*(?:dollars\s+)?(?:plus|minus)\s+[a-z]"
    rf"|\b(?:or|and|to|plus|minus|times|over|less|more)\s+(?:an?\s+)?(?:{WORDS})\b"
    r"|\b(?:reduc|increas|decreas|multipli|divid)ed\s+by\b|^\W*(?:dollars\s+)?cut\s+(?:in|by)\b|^\W*recurring(?=\W*$)"
    rf"|\bremainder\s+(?:of\s+)?(?:{WORDS})\b"
    # a numeral of its own, as digits are; one, half, third and quarter stand for other things, too, and a two-point
    # shot is one shot
    rf"|\b(?!(?:one|half|third|quarter)\b)(?:{WORDS}|zero)\b(?!-(?!fold\b|(?:{WORDS}|{_SCALES}|{_ORDINAL})s?\b)[A-Za-z])"
    r"|\b(?:hundred|thousand|(?:m|b|tr|quadr|quint)illion)ths?\b"
    rf"|\b(?:halves|thirds|{_ORDINAL}s)\b"  # quarters are coins
    r"|^\s*(?:twice|thrice)\b(?!-)|\b(?:twice|thrice)\b(?!-|\s+(?:as|the|that|what)\b)|^\s*(?:double|triple)\W*$"
    rf"|^\W*(?:(?:one[\s-])?(?:half|quarter|third|{_ORDINAL})\b(?![\s-]*grade|-[A-Za-z])|(?:st|nd|rd|th)\b)",
    re.IGNORECASE,
)
_ASIDE = r"(?:(?:the|an?|also|clearly|probably)\s+)?"
_DENIED = r"\b(?:not|wrong|incorrect|false)\s+(?:(?:the|an?|right|correct)\s+)*(?:answer|result|solution|value)\b"
TURNING = re.compile(  # a label that makes another number of what follows, or takes it back
    rf"(?:twice|double|triple|times|wrong|incorrect|false|{WORDS})\W*$"
    r"|.*\b(?:not|minus|negative|plus|of|than|at\s+least|at\s+most|about|around|approximately|roughly|nearly|almost)\W*$"
    r"|(?:.*\b(?:my|the|a|an|best|rough|educated|wild|i)\s+)?guess(?:\s+is)?\W*$"
    r"|.*\b(?:maybe|perhaps|possibly|probably|presumably|hopefully|supposedly)\W*$|.*\bi\s+(?:think|guess|believe|suppose|hope)\b"
    rf"|.*{_DENIED}|.*(?:\bnot|n['’]t)\s+(?:know|sure|certain)\W*$"
    # said of what follows; the number wrong is a count
    rf"|(?:.*\b(?:that|this|it|which|answer|result|solution|[a-z]+\s+said))(?:['’]s|\s+(?:is|was))\s+{_ASIDE}"
    r"(?:wrong|incorrect|false|mistaken?|error)\W*$",
    re.IGNORECASE | re.DOTALL,
)
_NO_ANSWER = r"(?:the\s+)?(?:right|correct|true|valid|possible|enough|answer|number|result|solution|total)\b"
TAKEN_BACK = re.compile(  # by what follows it; words that are nouns, too, by what follows them: cans, may flowers
    r"^\W*(?:negative|minus|wrong|incorrect|false|not)\W*$|^\s*-[\s*_`.]*$|\bbelow(?:\s+zero\b|\W*$)|"
    + _DENIED
    + rf"|\b(?:is|was|are)\s+{_ASIDE}(?:wrong|incorrect|false|negative)\b|\b(?:isn|wasn|ain)['’]?t\b"
    rf"|\b(?:is|was)\s+{_ASIDE}(?:not|never)\b"
    rf"|\bare(?:\s+{_ASIDE}(?:not|never)|n['’]?t)(?:\W*$|\s+{_NO_ANSWER})"  # 42 engines are not defective is 42
    # the number itself as the subject of anything but "is"
    r"|^\W*(?:do|does|did|could|would|should|might|seems?|appears?|fails?)(?:not|n['’]?t)?\b"
    r"|^\W*(?:can|will|must|may|wo)(?:not\b|n?['’]t\b|\s+(?:be|not|never|have|also|only|still|hardly|work|fit|equal)\b)"
    r"|^\W*looks?\s+(?!(?:of|at|for|from|per|each|an?|in|on|and)\b)[a-z]"
    r"|\b(?:should|must|ought\s+to|can(?:not|['’]?t))\s+be\b"
    r"|(?:^|[.,;:?!(])\W*(?:oops|wait|sorry(?!\s+(?:for|about|to)\b)|actually)\b"
    r"|(?:^\s*rather\s+(?:more|less|fewer|than)|[.,;:?!(]\W*rather|^\W*rather\W*$)\b"
    r"|(?:^|[.,;:?!(])\W*no(?:pe)?\b(?:\W*$|\s*[.,;:!?…]|\s+(?:it|that|this|it['’]s|i|we|the|not|wait|sorry|oops|actually|rather"
    r"|more|less|fewer|is|half|double|twice|negative|minus|wrong)\b)",
    re.IGNORECASE,
)
FAULTY = re.compile(  # of what is counted, and not of the number: answers, and what stands behind "of the"
    r"^\s*(?:of\s+(?:the|them|these|those|his|her|their|its|our|my)\b[A-Za-z' ]*?|(?:answers|questions|problems|items"
    r"|statements|guesses|responses)\s+)\bare\s+"
    r"(?:wrong|incorrect|false|negative|not\s+(?:right|correct|true|valid|possible|enough))\b",
    re.IGNORECASE,
)
INEXACT = re.compile(  # by what follows it
    r"\bor\s+(?:more|less|fewer|so|higher|lower|greater|above|below|under|over|thereabouts|maybe)\b"
    r"|\band\s+(?:up|above|over|counting|more|change)\b|\b(?:at\s+least|at\s+most|approximately|approx|roughly)\b"
    r"|\b(?:maybe|perhaps|possibly|probably|presumably|hopefully|supposedly)\b|\bi\s+(?:think|guess|believe|suppose|hope)\b|\bnot\s+sure\b|\?"
    r"|^\W*ish\b|^\W*\+|\bunless\b",  # but if: it often says again what the question supposes
    re.IGNORECASE,
)
_CONDITION = re.compile(r"\b(?:if|when|whenever|unless|provided|assuming|except|but|not|less|fewer)\b")
ABBREVIATED = "bn|mn|tn|(?i:mil|mill|mio|mln|bil|bln|tln|trn|mlrd|mrd|thsd|tsd)"  # scales
_SECOND = re.compile(rf"^\W*(?:or|and)\s+\W*[0-9]|^\W*(?:{ABBREVIATED})\W*$")  # 12\text{ (or 13)}, or a scale
DOUBTS = (INEXACT, OTHER_NUMBER, TAKEN_BACK, _CONDITION, _SECOND)  # in a text of mathematics
_COUNTERS = (  # what a number behind them is the name of
    "day|week|month|year|hour|minute|option|choice|page|row|room|floor|level|grade|round|age|number|total|sum|result"
)
GROSS = re.compile(r"^\W*gross(?=\W*$)", re.IGNORECASE)  # of money it is no twelve dozen
NUMBERED = re.compile(
    rf"[\s*_`(]*(?:(?:(?:on|in|at)\s+)?(?:the\s+)?(?:{_COUNTERS})\s+(?=[$€£¥₹]?\.?[0-9])"
    r"|(?:in|at|after)\s+(?=[0-9]))",
    re.IGNORECASE,
)
_COMPARED = (  # behind an answer, and in a question that such an answer is one to
    (
        re.compile(r"^\W*times\s+(?:as|more|less|fewer|[a-z]+er)\b", re.IGNORECASE),
        re.compile(r"\btimes\b", re.IGNORECASE),
    ),
    (
        re.compile(r"(?<!-)\b(?:less|fewer|too\s+(?:many|much|few|little))\b|\bshort(?=\W*$|\s+of\b)", re.IGNORECASE),
        re.compile(
            r"\b(?:more|less|fewer|extra|short|enough|lack\w*|differ(?:ence|s)?|than|compared|save[sd]?|missing|exceed\w*|too"
            r"|drop\w*|decreas\w*|lose[sr]?|lost|farther|further)\b",
            re.IGNORECASE,
        ),
    ),
    (
        re.compile(r"\b(?:loss|lost|debt|deficit)\W*$", re.IGNORECASE),
        re.compile(r"\b(?:los[est]\w*|debts?|owe[sd]?|owing|deficit)\b", re.IGNORECASE),
    ),
)
CONCLUDING = re.compile(
    r"(?:[\s*_`•]*(?:(?:yes|therefore|thus|hence|so|then|finally|altogether|overall|in\s+(?:total|all)|(?:a\s+)?total\s+of"
    r"|exactly|just|only)\b|[-=]>|→|⇒|•)[\s*_`]*[,:]?\s*){1,3}",
    re.IGNORECASE,
)
_COUNTED = re.compile(rf"\bhow\s+many\s+(?:more\s+)?({_SCALES}|ten)s?\b", re.IGNORECASE)
_MATHEMATICS = re.compile(r"(?P<unit>\b(?:in|per) )?(?:\$+([^$]+)\$+|\\\((.+?)\\\))")
_WORDS = re.compile(r"\\(?:text|mathrm|mbox)\s*\{[^{}]*\}")
RATIO = re.compile(r"\bratios?\b|\bproportion|\bodds\b", re.IGNORECASE)  # in what is asked
_ASKING = re.compile(  # what an expression is asked for with, before it
    r"\b(?:find|evaluate|compute|calculate|determine|simplify|what(?:['’]s|\s+is|\s+are)|value\s+of)\s*"
    r"(?:the\s+(?:exact\s+)?value\s+of\s*)?(?:\$+|\\[(\[])?\s*\Z",
    re.IGNORECASE,
)
_ASKED = re.compile(  # and what follows it then
    r"\s*(?:\$+|\\[)\]])?\s*(?:[.?!,;:]|\Z|(?:if|when|where|given|in|for|at)\b)", re.IGNORECASE
)
_CLOCK = re.compile(r"0?([0-9]{1,2}):([0-5][0-9])([ap]m)?")
_VERBS = (
    "has|have|had|is|are|was|were|be|needs?|needed|sells?|sold|pays?|paid|spends?|spent|takes?|took|costs?|earns?|earned"
    "|makes?|made|gets?|got|gives?|gave|buys?|bought|saves?|saved|eats?|ate|uses?|used|weighs?|walks?|walked|drives?|drove"
    "|reads?|contains?|receives?|received|works?|worked|runs?|ran|collects?|collected|equals?|loses?|lost|owes?|owed|wins?|won|scores?|scored"
    "|delivers?|delivered"
)
_STATED = re.compile(  # She has 42 apples; There are 42 of them
    rf"[\s*_`\"]*(?P<subject>(?:[A-Za-z][A-Za-z']*\s+){{1,8}}?)(?:(?:should|must|will|can|would|(?:needs?|has|have)\s+to)\s+)?(?:{_VERBS})\s+"
    r"(?:(?:a\s+total\s+of|exactly|now|still)\s+){0,2}(?=[$€£¥₹+*_`-]*\.?[0-9])",
    re.IGNORECASE,
)
_NO_SUBJECT = re.compile(
    rf"\b(?:{WORDS}|hundred|thousand|zero|not|never|no|none|nor|neither|nobody|without|cannot|more|less|fewer|over|under"
    r"|above|below|than|least|most|about|around|approximately|roughly|nearly|almost|of|to|from|by|minus|negative|plus|times"
    r"|twice|double|triple|wrong|incorrect|false|if|unless|when|maybe|perhaps|or|except|instead|rather|should|would|could"
    r"|might|may|must|step|base|root|power)\b|n['’]t\b",
    re.IGNORECASE,
)
_DOUBT = re.compile(  # pieces of fruit are no doubt
    r"\b(?:too|but|if|unless|except|until|before|(?<![a-z]s )of|times of)\b", re.IGNORECASE
)
_BOLD = re.compile(r"\\(?:mathbf|boldsymbol|bm)(?![A-Za-z])|[{}]")


def said_in_a_sentence(text: str) -> str | None:
    """The end of a short sentence, from its number on; None where the text is no sentence that says one number and
    nothing that makes another one of it."""
    found = _STATED.match(text)
    if found is None or _NO_SUBJECT.search(found["subject"]) or _DOUBT.search(text, found.end()):
        return None
    return text[found.end() :]


def without_counted(stated: str, prompt: str) -> str:
    """An answer without the scale that its question counts in: ``10 dozen`` is 10 where it asks how many dozen."""
    for found in _COUNTED.finditer(_question(prompt)):
        stated = re.sub(rf"(?<=[0-9])((?:\s|\\text{{|more\b)*)\b{found[1]}s?\b", r"\1", stated, flags=re.IGNORECASE)
    return stated


def clock(latex: str) -> tuple[str, ...] | None:
    """A time of day, 5:30 or 5:30 p.m., as (hour, minutes, half of the day); None where it is none."""
    bare = re.sub(r"\\(?:text|mathrm|mbox)|\\[,;:! ]|[\s~{}.]", "", latex).lower()
    found = _CLOCK.fullmatch(bare)
    return found.groups("") if found else None


def names_variable(prompt: str, letter: str) -> bool:
    """Whether a letter is a variable of a problem: in its mathematics, and no unit behind a number or an "in"."""
    return any(
        re.search(rf"(?<![A-Za-z0-9\\])(?<![0-9}}]\s){letter}(?![A-Za-z])", _WORDS.sub("", found[2] or found[3]))
        for found in _MATHEMATICS.finditer(prompt)
        if not found["unit"]
    )


def asks_for(prompt: str, name: str) -> bool:
    """Whether a problem has an expression by itself, as in "What is $x^2$?", and not within another one or an
    equation."""
    signs = [re.escape(sign) for sign in re.sub(r"[\s{}]", "", name)]
    bare = re.sub(r"[{}]", "", prompt)
    return any(
        bare[: found.start()].rstrip()[-1:] not in tuple("+-*/^_=<>")
        and bare[found.end() :].lstrip()[:1] not in tuple("+-*/^_=<>")
        and not (bare[: found.start()][-1:].isalnum() or bare[found.end() :][:1].isalnum())
        for found in re.finditer(r"\s*".join(signs), bare)
    )


def asks_only_for(prompt: str, expression: str) -> bool:
    """Whether a problem asks for an expression and for nothing made of it, as in "Find $2x+1$." does,
    and "What is $2x$ plus $3x$?" does not."""
    signs = [re.escape(sign) for sign in re.sub(r"\s", "", _BOLD.sub("", expression))]
    bare = _BOLD.sub("", prompt)
    return any(
        _ASKING.search(bare[: found.start()]) and _ASKED.match(bare[found.end() :])
        for found in re.finditer(r"\s*".join(signs), bare)
    )


def compares(stated: str, prompt: str) -> bool:
    """Whether an answer says how much less something is (``42 fewer``), or that it is lost, and its question asks for
    neither: then it is another quantity than the one asked for."""
    words, question = re.split("[0-9]", stated)[-1], _question(prompt)
    return any(said.search(words) and not asked.search(question) for said, asked in _COMPARED)


def _question(prompt: str) -> str:
    """The last sentence with a question mark, or else the last one."""
    sentences = re.split(r"(?<=[.?!])\s+", prompt)
    return next((one for one in reversed(sentences) if "?" in one), sentences[-1])
