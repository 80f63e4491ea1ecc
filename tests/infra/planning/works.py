"""Steps whose costs a person can add up, and their calls by name."""

from infra.planning.costs import Costs, Work


def work_of(costs: Costs, name: str) -> Work:
    """The call of that name."""
    return next(call for call in costs.calls if call.name == name)


def work(name: str, seconds: dict[str, float], *before: str, model: str | None = "actor", batch: bool = False) -> Work:
    return Work(name, model, "batch" if batch else "lease", before, batch, seconds)


def step_of(generate: dict[str, float], verify: dict[str, float], train: dict[str, float], **more: object) -> Costs:
    calls = (
        work("generate", generate),
        work("verify", verify, "generate", model=None),
        work("train", train, "generate", "verify", batch=True),
    )
    return Costs(calls, **more)  # type: ignore[arg-type]
