"""Where each call may run: the Dask resource tags it needs, and what the workers offer."""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from infra.cluster.source import UNKNOWN, announced, source_digest

if TYPE_CHECKING:
    from distributed import Client

DEVICES = ("CUDA", "MPS", "CPU")
ROLES = ("GENERATOR", "TRAINER", "VERIFIER", "REFERENCE", "CRITIC")
METRIC = "rlvf"  # the metric in which our workers describe themselves: see `infra.cluster.pace`
ANSWER_SECONDS = 5.0  # for the scheduler, where something can be done without its answer
SOURCE_SECONDS = 10.0  # for a worker to say which source it runs
LOCAL = ("GENERATOR", "VERIFIER", "REFERENCE", "CRITIC")  # roles of which `cluster` says how many a local cluster has
WORKER = "worker:"  # before the name of a worker, in place of a tag
LEAVING = "closing_gracefully"  # the status of a worker that was asked to leave
ALONE = ("train", "train_critic")  # calls that write where the next one reads: never on two workers at a time
ALWAYS = ("generate", "verify", "train", "evaluate")  # calls of every run


class PlacementError(ValueError):
    """No worker offers the tags that a call needs."""


class PlacementConfig(BaseModel):
    """Which tags each call needs; a worker must offer all of them. `worker:NAME` names one instead: of several, any."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    generate: tuple[str, ...] = Field(("GENERATOR",), description="tags of the workers that sample completions")
    verify: tuple[str, ...] = Field(("VERIFIER",), description="tags of the workers that judge completions")
    greedy: tuple[str, ...] = Field(
        ("GENERATOR",), description="tags of the workers that sample the greedy completions of remax"
    )
    reference: tuple[str, ...] = Field(
        ("GENERATOR",), description="tags of the workers that score completions under the reference policy"
    )
    reward: tuple[str, ...] = Field(("GENERATOR",), description="tags of the workers that run a reward model")
    train: tuple[str, ...] = Field(("TRAINER",), description="tags of the worker that updates the policy")
    value: tuple[str, ...] = Field(
        ("TRAINER",), description="tags of the workers that score with the value model, of algorithms that have one"
    )
    train_critic: tuple[str, ...] = Field(("TRAINER",), description="tags of the worker that updates the value model")
    evaluate: tuple[str, ...] = Field(("GENERATOR",), description="tags of the workers that sample for evaluations")

    @field_validator("*")
    @classmethod
    def _known(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        if not tags:
            raise ValueError(f"needs at least one tag, for example one of {', '.join(ROLES)}")
        for tag in tags:
            if tag.startswith(WORKER):
                if tag != f"{WORKER}{worker_name(tag.removeprefix(WORKER))}":
                    raise ValueError(f"{tag!r} names no worker; write it like {WORKER}laptop-generator (`rlvf status`)")
            elif tag not in DEVICES + ROLES:
                near = get_close_matches(tag.upper(), DEVICES + ROLES, n=1, cutoff=0)[0]
                raise ValueError(f"unknown tag {tag!r}; did you mean {near}? (devices {DEVICES}, roles {ROLES})")
        return tags

    @property
    def calls(self) -> tuple[str, ...]:
        return _calls()

    def tags(self, call: str) -> tuple[str, ...]:
        """The tags that `call` needs; raises `ValueError` for a call that does not exist."""
        if call not in self.calls:
            raise ValueError(f"unknown call {call!r}; the calls are {', '.join(self.calls)}")
        tags: tuple[str, ...] = getattr(self, call)
        return tags

    def resources(self, call: str) -> dict[str, float]:
        """The resources of a worker that a Dask task of `call` takes while it runs; a name is none."""
        return {tag: 1 for tag in self.tags(call) if not tag.startswith(WORKER)}


@cache
def _calls() -> tuple[str, ...]:
    return tuple(PlacementConfig.model_fields)


@lru_cache(4096, typed=True)  # several at every poll of a large cluster
def worker_name(announced: object) -> str:
    """The name of a worker, as it announces itself, in letters that a metric and a file may have.

    A worker without a name announces its address: `tcp://10.0.0.7:40123` becomes `10.0.0.7-40123`.
    """
    name = re.sub(r"^[a-z]+://", "", str(announced))
    return re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") or "worker"


@dataclass(frozen=True)
class Offer:
    """A running worker, as it announces itself."""

    address: str
    name: str  # see worker_name
    resources: Mapping[str, float]
    seen: float = field(default=0.0, compare=False)  # its last sign of life, by the scheduler's clock
    waits: str = field(default="", compare=False)  # the error of its storage, while that is away
    source: str = field(default="", compare=False)  # the digest of its source; empty where it has not said
    memory_gb: float = field(default=0.0, compare=False)  # of its device; 0 where it has not said
    machine: str = field(default="", compare=False)  # the same of all that share its cores; empty where it has not said
    cores: int = field(default=0, compare=False)  # of the machine
    leaves: bool = field(default=False, compare=False)  # it was asked to: it may end what it has, and gets nothing

    def satisfies(self, tags: Collection[str]) -> bool:
        """Whether it offers all of the tags, and is one of the workers that they name, if they name any."""
        named = {tag for tag in tags if tag.startswith(WORKER)}
        if named and f"{WORKER}{self.name}" not in named:
            return False
        return all(self.resources.get(tag, 0) >= 1 for tag in tags if tag not in named)


def offers(
    client: "Client",
    seconds: float | None = None,
    *,
    leaving: bool = False,
    given_up: Callable[[], bool] = lambda: False,
) -> list[Offer]:
    """The running workers, asked of the scheduler, and those that are `leaving` if they are asked for. Raises `OSError`
    when it does not answer, in `seconds` if given, else before this is `given_up`."""
    known: dict[str, Any] | None = None
    patience = seconds or ANSWER_SECONDS
    while known is None:
        # Not client.scheduler_info(): it returns a field of the client that a periodic callback overwrites without
        # workers.
        scheduler: Any = client.scheduler
        if scheduler is None or client.status not in ("running", "connecting"):
            raise OSError(f"the Dask client is {client.status}")
        try:
            known = client.sync(scheduler.identity, n_workers=-1, callback_timeout=patience)  # type: ignore[no-untyped-call]
        except TimeoutError:
            if seconds is not None or given_up():
                raise
            patience *= 2  # the answer may be long on its way
    there = ("running", LEAVING) if leaving else ("running",)
    return [_offer(at, worker) for at, worker in known["workers"].items() if worker["status"] in there]


def _offer(address: str, worker: Mapping[str, Any]) -> Offer:
    said = worker["metrics"].get(METRIC) or {}
    return Offer(
        address,
        worker_name(worker["name"]),
        worker["resources"],
        worker["last_seen"],
        str(said.get("waits", "")),
        str(announced(said.get("versions", {}))),
        float(said.get("memory_gb", 0.0)),
        str(said.get("machine", "")),
        int(said.get("cores", 0)),
        worker["status"] == LEAVING,
    )


def workers_with(client: "Client", tags: Collection[str]) -> list[str]:
    """Addresses of the running workers that offer all of `tags`."""
    return [offer.address for offer in offers(client) if offer.satisfies(tags)]


def check_placement(client: "Client", placement: PlacementConfig, calls: Iterable[str] = ALWAYS) -> None:
    """Raise `PlacementError` unless some worker satisfies each of the calls."""
    present = offers(client)
    for call in sorted(calls, key=placement.calls.index):
        if not any(offer.satisfies(placement.tags(call)) for offer in present):
            raise unsatisfied(client, call, placement.tags(call), present)


def check_sources(client: "Client") -> None:
    """Raise `PlacementError` where a worker runs another source of rlvf than this process. A worker of Dask's own
    command announces nothing and is asked; one that does not answer passes."""
    said: dict[str, str] = {}
    for offer in offers(client):
        source = offer.source or _asked(client, offer.address)
        if source not in ("", source_digest()):
            said[offer.name] = source
    if said:
        raise PlacementError(
            f"these workers run another source of rlvf than this flow ({source_digest()}): "
            f"{', '.join(f'{name} ({source})' for name, source in sorted(said.items()))}; "
            "install the same commit on all machines and start the workers there again"
        )


def _asked(client: "Client", address: str) -> str:
    def ask() -> Any:
        return client.run(source_digest, workers=[address], on_error="return", asynchronous=True)

    try:
        answer = client.sync(ask, callback_timeout=SOURCE_SECONDS)[address]  # type: ignore[no-untyped-call]
    except (TimeoutError, KeyError):  # stopped, or gone meanwhile
        return ""
    return answer if isinstance(answer, str) else "" if isinstance(answer, OSError) else UNKNOWN


def unsatisfied(client: "Client", call: str, tags: Collection[str], present: Collection[Offer]) -> PlacementError:
    """The error that says which tags `call` lacks, which workers there are, and the command that would add one."""
    everywhere = {tag for offer in present for tag, amount in offer.resources.items() if amount >= 1}
    named = [tag for tag in tags if tag.startswith(WORKER)]
    if named and not any(f"{WORKER}{offer.name}" in named for offer in present):
        return _away(call, named, present)
    missing = [tag for tag in tags if tag not in everywhere and tag not in named]
    lack = f"no worker offers {' or '.join(missing)}" if missing else f"no single worker offers {' and '.join(tags)}"
    there = _described(present)
    address = client.scheduler.address if client.scheduler is not None else "<scheduler address>"
    roles = ",".join(tag.lower() for tag in ROLES if tag in tags)
    device = "".join(f" --device {tag.lower()}" for tag in DEVICES if tag in tags)
    chosen = f" --roles {roles}" if roles and present else ""  # where there is none, the other roles lack as well
    remedy = f"Add one with: rlvf worker {address}{chosen}{device}"
    if client.cluster is not None:  # of this machine, and it ends with this process
        asked = [f"--cluster.{tag.lower()}s 1" for tag in missing if tag in LOCAL]
        here = bool(asked) and len(asked) == len(missing)
        elsewhere = "Take a cluster that has one: --cluster.scheduler ADDRESS"
        remedy = f"Ask for one: {' '.join(asked)}" if here else elsewhere
    return PlacementError(
        f"placement.{call} needs {' and '.join(tags)} but {lack}. Workers: {there or 'none'}. {remedy}"
    )


def _described(present: Collection[Offer]) -> str:
    return "; ".join(
        f"{offer.name}: {' '.join(sorted(offer.resources)) or 'no tags'}"
        for offer in sorted(present, key=lambda offer: offer.name)
    )


def _away(call: str, named: Sequence[str], present: Collection[Offer]) -> PlacementError:
    """The error of a call whose workers are named, and none of them is there."""
    tags = " ".join(tag for tag in ROLES if any(offer.resources.get(tag, 0) >= 1 for offer in present))
    names = " or ".join(tag.removeprefix(WORKER) for tag in named)
    near = get_close_matches(named[0].removeprefix(WORKER), [offer.name for offer in present], n=1)
    meant = f"did you mean {WORKER}{near[0]}? " if near else ""
    return PlacementError(
        f"placement.{call} names {names}, and no such worker is there. Workers: {_described(present) or 'none'}. "
        f"{meant}Start it again, or name tags instead{f' ({tags})' if tags else ''}"
    )
