"""How a class is acted on: its tools, or step, found on the class; what it contradicts itself in."""

import inspect
from dataclasses import dataclass

from rl.environments.schema import Schema, SchemaError, schema_of

NO_TOOLS = ("reset", "step", "get_reward")  # methods with a meaning of their own
NO_TURN = {kind for each in (str, int, float, bool) for kind in (each, each.__name__)}  # what holds no reward


class ContractError(TypeError):
    """A class that is no environment, or that does not do what one does: one line."""


@dataclass(frozen=True)
class Interface:
    """How a class is acted on."""

    tools: tuple[Schema, ...] = ()  # as transformers' chat templates take them
    step: bool = False  # whether it takes a turn's text


def interface_of(cls: type) -> Interface:
    """How a class is acted on. Raises ContractError where it is no environment."""
    name = cls.__name__
    # as TRL lists them, in the order of their names
    methods = dict(inspect.getmembers(cls, inspect.isfunction))
    for each in methods:
        function = inspect.unwrap(methods[each])
        if not each.startswith("_") and (inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)):
            raise ContractError(f"{name}.{each} is async; write a plain def: it has a process of its own")
    if "reset" not in methods:
        raise ContractError(f"{name} has no reset; write: def reset(self, **columns): …")
    if not any(each.kind is each.VAR_KEYWORD for each in inspect.signature(methods["reset"]).parameters.values()):
        raise ContractError(f"{name}.reset is given every column of a problem; write **_ behind those that it uses")
    for method, how, given in (("get_reward", "get_reward()", ()), ("step", "step(text)", ("",))):
        try:
            if method in methods:
                inspect.signature(methods[method]).bind(None, *given)
        except TypeError as error:
            raise ContractError(f"{name}.{method} is called as {how}: {error}") from None
    try:
        inspect.signature(cls).bind()
    except TypeError as error:
        raise ContractError(f"{name} is made without arguments, and {error}") from None
    public = [each for each in methods if not each.startswith("_") and each not in NO_TOOLS]
    if odd := [each for each in public if methods[each].__name__ != each]:
        raise ContractError(f"{name}.{odd[0]} is named {methods[odd[0]].__name__}; decorate it with functools.wraps")
    try:
        tools = [schema_of(methods[each]) for each in public]
    except SchemaError as error:
        raise ContractError(f"{name}.{error}") from None
    except NameError as error:  # of a type that is written as a text
        raise ContractError(f"{name}: a tool's type is not known: {error}") from None
    if not tools and "step" not in methods:
        raise ContractError(f"{name} has neither a tool (a public method) nor step(self, text)")
    gives = {inspect.signature(methods[each]).return_annotation for each in public}
    if not {"step", "get_reward"} & set(methods) and gives <= NO_TURN:
        raise ContractError(f"{name} gives no reward; write: def get_reward(self): …")
    return Interface(tuple(tools), "step" in methods)
