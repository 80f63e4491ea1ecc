"""Files of problems, by the numbers that they ask for."""

import json
from pathlib import Path

HEADER = "python_expression,natural_language,level\n"


def csv(numbers: range) -> str:
    return HEADER + "".join(f"{n} + 1,add 1 to {n},{n % 3}\n" for n in numbers)


def jsonl(path: Path, numbers: range, **more: str) -> str:
    path.write_text(
        "".join(json.dumps({"question": f"what is {n}?", "answer": f"#### {n}", **more}) + "\n" for n in numbers)
    )
    return str(path)
