"""Which run a flow trains: a new one, one that is resumed, or the one that it has begun before."""

from dataclasses import replace

from prefect.runtime import flow_run

from flows.config import TrainConfig
from flows.run.page import from_prefect
from flows.run.recovery import Progress
from flows.run.workplace import Workplace
from flows.start.defaults import notes_on_audits, notes_on_rate, with_defaults, without_effect
from flows.start.preflight import check_model
from flows.start.references import check_reference
from flows.start.resume import resume_with
from flows.start.runs import Run, begun_by, new_run
from flows.start.trust import refuse_odd_files
from infra.cluster.placement import workers_with
from infra.runs.checkpoints import require_run, resolve_run


def going_on(progress: Progress) -> Run | None:
    """The run that `with_recovery` begins again, as this process has begun it: nobody is asked whether it is trusted,
    and what its files say by now changes nothing."""
    if progress.opened is None:
        return None
    require_run(progress.opened.run.uri)
    return progress.opened.run


def chosen_run(config: TrainConfig, resume: str | None, workplace: Workplace) -> Run:
    """The run to train. One that this flow run has begun before, as Prefect starts it again, is resumed."""
    if resume is None and (resume := own_run_name(config, workplace)) is not None:
        config, _ = with_defaults(config)  # as they were chosen when it began
    if resume is not None:
        run, kept = resume_with(resume, workplace.runs, config, form=from_prefect())
        of_rate = [] if run.saved is None else notes_on_rate(run.config, run.saved)
        for line in (*kept, *of_rate, *notes_on(run.config, workplace)):
            workplace.display.say(line)
        return run
    for note in (check_model(config.policy.model, workplace.runs), check_reference(config, workplace.runs)):
        if note:
            workplace.display.say(note)
    config, chosen = with_defaults(config)
    for line in (*chosen, *notes_on(config, workplace)):
        workplace.display.say(line)
    run = new_run(config.model_copy(update={"run": name_of(config)}), workplace.runs, "resume: ")
    refuse_odd_files(run.uri)
    return replace(run, flow_run=flow_run.id)


def notes_on(config: TrainConfig, workplace: Workplace) -> list[str]:
    """What is set and does nothing, on these workers."""
    generators = workers_with(workplace.dispatch.client, config.placement.tags("generate"))
    return [*without_effect(config), *notes_on_audits(config, len(generators))]


def own_run_name(config: TrainConfig, workplace: Workplace) -> str | None:
    """The name of the run that this flow run has begun before; None if it has begun none. A run of that name that
    another flow run has begun is not its own."""
    named = name_of(config)
    return named if begun_by(resolve_run(named, workplace.runs), flow_run.id) else None


def name_of(config: TrainConfig) -> str:
    return config.run or str(flow_run.name)
