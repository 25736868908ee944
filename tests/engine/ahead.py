"""Prompts on an engine through the worker's own cores, with steps launched ahead if the engine takes them."""

import structlog

from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor
from services.worker.engine.interface import Engine
from services.worker.step_runner import StepDone, StepRunner
from tests.engine.driver import greedy
from tests.worker.plans import Planned, SmallLeader


def run_ahead(engine: Engine, prompts: list[list[int]], num_outputs: list[int], chunk: int) -> tuple[object, int]:
    """The outputs of each prompt, greedily, and how many steps were launched while another one ran."""
    leader = SmallLeader(engine.block_size, chunk)
    leader.open_epoch(1)
    for number, (prompt, count) in enumerate(zip(prompts, num_outputs, strict=True)):
        leader.add(Planned(number, prompt, greedy(count)))
    executor = PlanExecutor("w", engine.num_blocks, engine.block_size, engine.max_model_len, engine.vocab_size)
    runner = StepRunner(engine, executor, structlog.get_logger(), lambda: None)
    num_ahead = 0
    while (plan := leader.make_plan()) is not None:
        while not runner.start(PlanColumns(plan), 0.0):
            tell(leader, runner)
        num_ahead += len(runner) == 2
    while len(runner):
        tell(leader, runner)
    runner.close()
    return [sequence.outputs for sequence in leader.sequences.values()], num_ahead


def tell(leader: SmallLeader, runner: StepRunner) -> None:
    """The leader hears of the first step."""
    done = runner.finish_first(lambda: 1)
    assert isinstance(done, StepDone) and not done.frame.errors
    leader.update(done.frame)
