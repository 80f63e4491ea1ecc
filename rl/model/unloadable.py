"""Why transformers does not load a model, as one line; without torch, which takes seconds to import.

A configuration may say anything, and transformers raises as much for it: whoever loads one catches all of `Exception`.
"""

from rl.config import PICKLED


def reason(error: Exception) -> str:
    """One line, with the remedy where transformers would suggest what is not done here."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    words = " ".join(lines)
    if "custom code" in words or "trust_remote_code" in words:
        return "it needs code of its own, which is never run here; take a model that transformers knows"
    if "no file named model.safetensors" in words or "safetensors variant" in words:
        return f"it has no model.safetensors, and {PICKLED}"
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    if said and not isinstance(error, ArithmeticError | AttributeError | LookupError | TypeError):
        return said
    return f"{type(error).__name__}: {said}".removesuffix(": ")  # a division by a number of heads that is 0
