"""The configuration of the algorithm: what all have in common, and the options of each."""

import functools
import operator
import re
from collections.abc import Mapping
from copy import copy
from difflib import get_close_matches
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo

from rl.algorithms import ALGORITHMS, Algorithm
from rl.algorithms.own import OwnAlgorithmError, own_algorithm
from rl.graph import Graph, GraphError, graph_of
from rl.learning.correction_config import CorrectionConfig
from rl.learning.kl_config import KlConfig

OWN_PATTERN = r".+\.py:[^:/\\]+"  # an algorithm of the user's


class CommonAlgorithmConfig(BaseModel):
    """What every algorithm has."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "name"

    name: str = Field(
        "reinforce",
        min_length=1,
        description=f"{'; '.join(f'{name}: {of.summary}' for name, of in ALGORITHMS.items())}; or a class of yours, "
        "my_algorithm.py:MyAlgorithm",
        json_schema_extra={"allOf": [{"pattern": f"^({'|'.join(ALGORITHMS)}|{OWN_PATTERN})$"}]},  # for Prefect's form
    )
    options: dict[str, Any] = Field({}, description="fields of your own algorithm")
    kl: KlConfig = Field(KlConfig(), title="Kl")
    entropy: float = Field(0.0, ge=0, description="weight of the entropy bonus of each token")
    minibatches: int = Field(1, ge=1, description="optimizer steps per pass over a batch, each on a part of its groups")
    epochs: int = Field(1, ge=1, description="passes over a batch")
    proximal: Literal["behaviour", "recomputed", "interpolated"] = Field(
        "behaviour",
        description="the old policy of the ratio pi/old: behaviour, the one that sampled (mu); or the one that the "
        "step began with (decoupled PPO), recomputed by one more forward pass or interpolated from versions, with "
        "weights old/mu",
    )
    importance_cap: float = Field(5.0, gt=0, description="cap on a token's weight old/mu (decoupled PPO)")
    correction: CorrectionConfig = Field(CorrectionConfig(), title="Correction")
    mask_truncated: bool = Field(
        False,
        description="leave completions that were cut at sampling.max_tokens out of the loss: their end is unknown, but "
        "then nothing teaches them to end",
    )
    overlong: int | None = Field(
        None,
        ge=0,
        description="DAPO's soft penalty: rewards fall over the last this many tokens before sampling.max_tokens, by 1 "
        "at the limit, in groups whose rewards differ without that; null takes a fifth of max_tokens for dapo, else 0",
    )

    @model_serializer(mode="wrap")
    def _with_its_own_options(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Without other algorithms' options, and without those that are left to the algorithm: the defaults of both
        change with the algorithms that there are."""
        of, fields = ALGORITHMS.get(self.name), type(self).model_fields
        own = of.model_fields if of is not None else {}
        others = {name for other in ALGORITHMS.values() for name in other.model_fields} - own.keys()
        return {
            name: value
            for name, value in dump(self).items()
            if name not in others and not (name in own and value is None and fields[name].default is None)
        }

    def built_in(self) -> Algorithm:
        """The algorithm of that name, with its options. Raises ValidationError."""
        of = ALGORITHMS[self.name]
        # of what is not given, each algorithm has a default of its own
        return of(**self.model_dump(include=set(of.model_fields), exclude_defaults=True))

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name in ALGORITHMS or re.fullmatch(OWN_PATTERN, name):
            return name
        near = get_close_matches(name.lower().replace("-", "_").replace("++", "_pp"), ALGORITHMS, 1)
        meant = f"did you mean {near[0]}?" if near else "a class of yours is written my_algorithm.py:MyAlgorithm"
        raise ValueError(f"is none of {', '.join(ALGORITHMS)}; {meant}")

    @model_validator(mode="after")
    def _goes_together(self, info: ValidationInfo) -> Self:
        own, asked = self.name not in ALGORITHMS, (info.context or {}).get("asked", ())
        if self.importance_cap != type(self).model_fields["importance_cap"].default:
            if self.proximal == "behaviour":
                raise ValueError(
                    "importance_cap: cuts the weights of proximal recomputed or interpolated; give one of these"
                )
            if self.correction.kind == "truncate":
                raise ValueError("importance_cap: correction truncate cuts the same weights; leave out one of them")
        if self.proximal == "behaviour" and self.correction.kind == "truncate":
            raise ValueError(
                "correction: truncate cuts the weights of proximal recomputed or interpolated, as with behaviour the "
                "loss itself has the ratio to mu; give one of these"
            )
        if self.options and not own:
            raise ValueError(f"options: are of an algorithm of yours; those of {self.name} are written algorithm.NAME")
        for name, field in type(self).model_fields.items():
            having = [other for other, of in ALGORITHMS.items() if name in of.model_fields]
            given = getattr(self, name) != field.get_default() or f"algorithm.{name}" in asked
            if having and own and given:
                raise ValueError(f"{name}: those of an algorithm of yours are given by options, as {{{name}: VALUE}}")
            if having and self.name not in having and given:
                raise ValueError(f"{name}: is no option of {self.name}, but of {', '.join(having)}")
        if own:
            return self
        try:
            algorithm = self.built_in()
        except ValidationError as error:
            [first, *_] = error.errors()
            option = ".".join(map(str, first["loc"]))
            raise ValueError(
                f"{option}: {first['input']!r} is not allowed with name {self.name}: {first['msg']}"
            ) from None
        if why := self._contradicted(algorithm):
            raise ValueError(why)
        return self

    def _contradicted(self, algorithm: Algorithm) -> str:
        """Which option does not go with this algorithm, and why; empty where all do."""
        if self.overlong and "baseline" in algorithm.needs:
            return (
                f"overlong: {self.name} subtracts the reward of a greedy completion, which has no such penalty; leave "
                "it out, or take another algorithm"
            )
        why = self.correction.contradicts(algorithm, self.name, self.proximal)
        return f"correction: {why}" if why else ""

    @property
    def importance_bound(self) -> float:
        """At which the weights old/mu are cut."""
        return self.correction.bounds[1] if self.correction.kind == "truncate" else self.importance_cap


def _options() -> dict[str, Any]:
    """The options of all algorithms, as fields of one configuration."""
    declared: dict[str, dict[str, FieldInfo]] = {}
    for algorithm, of in ALGORITHMS.items():
        for name, info in of.model_fields.items():
            assert name not in CommonAlgorithmConfig.model_fields, f"option {name!r} of {algorithm} is one of all"
            declared.setdefault(name, {})[algorithm] = info
    return {name: _field(by_algorithm) for name, by_algorithm in declared.items()}


def _field(declared: Mapping[str, FieldInfo]) -> tuple[Any, Any]:
    """Type and field of an option, by the algorithms that have it. One that they declare differently is null where it
    is not given: its default and its bounds are those of the algorithm that is chosen."""
    first, *others = declared.values()
    if all(repr(other) == repr(first) for other in others):
        return first.annotation, copy_field(first, f"{', '.join(declared)}: {first.description}")
    kind = functools.reduce(operator.or_, (info.annotation for info in declared.values()), NoneType)
    said: dict[str, list[str]] = {}
    for name, info in declared.items():
        said.setdefault(f"{info.description} (null takes {info.default})", []).append(name)
    return kind, Field(None, description="; ".join(f"{', '.join(names)}: {text}" for text, names in said.items()))


def copy_field(of: FieldInfo, description: str) -> FieldInfo:
    """The same field with other words."""
    other = copy(of)
    other.description = description
    return other


if TYPE_CHECKING:
    AlgorithmConfig = CommonAlgorithmConfig
else:
    AlgorithmConfig = create_model(
        "AlgorithmConfig",
        __base__=CommonAlgorithmConfig,
        __module__=__name__,
        __doc__="What is optimised, with the options of every algorithm.",
        **_options(),
    )


class AlgorithmSpec(AlgorithmConfig):
    """An algorithm with its options. The text of a user's file travels along: a trainer's machine may lack the file."""

    text: str = ""

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm, made from the user's text where it is his own. Raises OwnAlgorithmError."""
        if self.name in ALGORITHMS:
            return self.built_in()
        of = own_algorithm(self.name, self.text)
        try:
            found = of(**self.options)
        except ValidationError as error:
            [first, *_] = error.errors()
            option = ".".join(map(str, first["loc"]))
            said = first["msg"]
            if first["type"] == "extra_forbidden":
                near = get_close_matches(option, of.model_fields, 1)
                has = f"its options are {', '.join(of.model_fields)}" if of.model_fields else "it has no options"
                said = f"is none of its options; did you mean {near[0]}? ({has})" if near else f"is unknown; {has}"
            raise OwnAlgorithmError(f"algorithm.options.{option}: {said} ({self.name})") from None
        if why := self._contradicted(found):
            raise OwnAlgorithmError(f"algorithm.{why}")
        return found

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `Batch` that its steps read beside rollouts and rewards."""
        return self.algorithm.needs | self.kl.needs

    @property
    def every_group(self) -> bool:
        """Whether it learns from groups whose rewards are all equal, too."""
        return self.algorithm.every_group

    def graph(self, *, reward_model: bool = False) -> Graph:
        """The calls of a step. Raises OwnAlgorithmError."""
        try:
            return graph_of(self.algorithm, self.needs, reward_model=reward_model)
        except GraphError as error:
            raise OwnAlgorithmError(f"algorithm {self.name}: {error}") from None

    def buffer(self, max_tokens: int) -> int:
        """Tokens before the limit in which rewards fall."""
        return int(self.algorithm.overlong_share * max_tokens) if self.overlong is None else self.overlong
