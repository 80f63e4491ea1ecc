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
OTHER_NUMBER = re.compile(  # what makes another number of the one before it, or adds one
    r"\b(?:hundred|thousand|(?:m|b|tr|quadr|quint)illion|dozen|score|gross|grand|lakh|crore)s?\b"
    r"|\b(?:squared|cubed|factorial|(?:doubl|tripl|quadrupl|halv)ed|point|mod(?:ulo)?)\b|\bpower\s+of\b|\bin\s+base\b"
    rf"|\b(?:or|and|to|plus|minus|times|over|less|more)\s+(?:an?\s+)?(?:{WORDS})\b"
    # a numeral of its own, as digits are; one, half, third and quarter stand for other things, too
    rf"|\b(?!(?:one|half|third|quarter)\b)(?:{WORDS}|zero)\b"
    r"|\b(?:hundred|thousand|(?:m|b|tr|quadr|quint)illion)ths?\b"
    rf"|\b(?:halves|thirds|{_ORDINAL}s)\b"  # quarters are coins
    r"|^\s*(?:twice|thrice)\b(?!-)|\b(?:twice|thrice)\b(?!-|\s+(?:as|the|that|what)\b)|^\s*(?:double|triple)\W*$"
    rf"|^\W*(?:(?:half|quarter|third|{_ORDINAL})\b(?![\s-]*grade)|(?:st|nd|rd|th)\b)",
    re.IGNORECASE,
)
_DENIED = r"\b(?:not|wrong|incorrect|false)\s+(?:(?:the|an?|right|correct)\s+)*answer\b"
TURNING = re.compile(  # a label that makes another number of what follows, or takes it back
    rf"(?:twice|double|triple|times|wrong|incorrect|false|{WORDS})\W*$"
    r"|.*\b(?:not|minus|negative|plus|of|than|at\s+least|at\s+most|about|around|approximately|roughly|nearly|almost)\W*$"
    rf"|.*{_DENIED}",
    re.IGNORECASE | re.DOTALL,
)
TAKEN_BACK = re.compile(  # by what follows it
    r"^\W*(?:negative|minus|wrong|incorrect|false|not)\W*$|\bbelow(?:\s+zero\b|\W*$)|\b(?:isn|wasn|aren)['’]?t\b|"
    + _DENIED
    + r"|\b(?:is|was|are)\s+(?:(?:the|an?|also|clearly|probably)\s+)?(?:not|never|wrong|incorrect|false|negative)\b"
    # the number itself as the subject of anything but "is"
    r"|^\W*(?:does|do|did|can|could|will|would|should|must|may|might|seem|look|appear|fail)(?:s|n['’]?t|not)?\b"
    r"|\b(?:should|must|ought\s+to|can(?:not|['’]?t))\s+be\b"
    r"|(?:^|[.,;:?!(])\W*(?:no|oops|wait|sorry|actually|rather)\b",
    re.IGNORECASE,
)
INEXACT = re.compile(  # by what follows it
    r"\bor\s+(?:more|less|fewer|so|higher|lower|greater|above|below|under|over|thereabouts|maybe)\b"
    r"|\band\s+(?:up|above|over|counting|more)\b|\b(?:at\s+least|at\s+most|approximately|approx|roughly)\b"
    r"|^\W*ish\b|^\W*\+",
    re.IGNORECASE,
)
_COUNTERS = (  # what a number behind them is the name of
    "day|week|month|year|hour|minute|option|choice|page|row|room|floor|level|grade|round|age|number|total|sum|result"
)
NUMBERED = re.compile(
    rf"[\s*_`(]*(?:(?:(?:on|in|at)\s+)?(?:the\s+)?(?:{_COUNTERS})\s+(?=[$€£¥₹]?\.?[0-9])"
    r"|(?:in|at|after)\s+(?=[0-9]))",
    re.IGNORECASE,
)
_COMPARED = (  # behind an answer, and in a question that such an answer is one to
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
    r"(?:[\s*_`•]*(?:(?:therefore|thus|hence|so|then|finally|altogether|overall|in\s+(?:total|all)|(?:a\s+)?total\s+of"
    r"|exactly|just|only)\b|[-=]>|→|⇒|•)[\s*_`]*[,:]?\s*){1,3}",
    re.IGNORECASE,
)
_VERBS = (
    "has|have|had|is|are|was|were|be|needs?|needed|sells?|sold|pays?|paid|spends?|spent|takes?|took|costs?|earns?|earned"
    "|makes?|made|gets?|got|gives?|gave|buys?|bought|saves?|saved|eats?|ate|uses?|used|weighs?|walks?|walked|drives?|drove"
    "|reads?|contains?|receives?|received|works?|worked|runs?|ran|collects?|collected|equals?|loses?|lost|owes?|owed|wins?|won|scores?|scored"
)
_STATED = re.compile(  # She has 42 apples; There are 42 of them
    rf"[\s*_`\"]*(?P<subject>(?:[A-Za-z][A-Za-z']*\s+){{1,8}}?)(?:{_VERBS})\s+"
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
_DOUBT = re.compile(r"\b(?:too|but|if|unless|except|until|before|of)\b", re.IGNORECASE)


def said_in_a_sentence(text: str) -> str | None:
    """Of a short sentence that says one number and nothing that makes another one of it, the rest from that number on;
    None where it is no such sentence."""
    found = _STATED.match(text)
    if found is None or _NO_SUBJECT.search(found["subject"]) or _DOUBT.search(text, found.end()):
        return None
    return text[found.end() :]


def compares(stated: str, prompt: str) -> bool:
    """Whether an answer says how much less something is (``42 fewer``), or that it is lost, and its question asks for
    neither: then it is another quantity than the one asked for."""
    words = re.split("[0-9]", stated)[-1]
    sentences = re.split(r"(?<=[.?!])\s+", prompt)
    question = next((one for one in reversed(sentences) if "?" in one), sentences[-1])
    return any(said.search(words) and not asked.search(question) for said, asked in _COMPARED)
