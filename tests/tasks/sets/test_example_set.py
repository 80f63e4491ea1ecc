"""Which examples are held out: none of which a trained one tells the answer."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rl.problems.examples import DemonstrationsConfig
from tasks.sets.example_set import ExampleSet, open_examples


def opened(folder: Path, rows: Sequence[dict[str, Any]]) -> ExampleSet:
    file = folder / "examples.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return open_examples(DemonstrationsConfig(path=str(file)), None)


def chat(*words: str) -> dict[str, Any]:
    roles = ["user", "assistant"] * len(words)
    return {"messages": [{"role": role, "content": content} for role, content in zip(roles, words, strict=False)]}


def test_prompts_that_differ_in_case_and_blanks_are_on_one_side(tmp_path: Path) -> None:
    sums = [(a, b) for a in range(10) for b in range(10)]
    rows = [{"prompt": f"What is {a} plus {b}?", "completion": str(a + b)} for a, b in sums]
    rows += [{"prompt": f"what is  {a} PLUS {b}?", "completion": f" {a + b}"} for a, b in sums]
    found = opened(tmp_path, rows)
    assert (len(found.train), len(found.held_out)) == (160, 40)
    trained, kept = ({" ".join(each.prompt.lower().split()) for each in side} for side in (found.train, found.held_out))
    assert trained.isdisjoint(kept)


def test_turns_of_one_conversation_are_on_one_side_and_other_conversations_are_told_apart(tmp_path: Path) -> None:
    rows = []
    for number in range(50):
        begin = (f"Tell me of {number}.", f"It is {number}.")
        rows += [chat(*begin), chat(*begin, "Continue.", f"And {number + 1} is next.")]
    found = opened(tmp_path, rows)
    assert (len(found.train), len(found.held_out)) == (80, 20)

    def begins(of: ExampleSet, side: str) -> set[str]:
        return {each.instructions.examples[0][0] if each.instructions else each.prompt for each in getattr(of, side)}

    assert begins(found, "train").isdisjoint(begins(found, "held_out"))
