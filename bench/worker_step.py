"""What one step costs the worker outside of its engine: from plan to engine input, from output to encoded frame.

python -m bench.worker_step [--sequences 16 64 256] [--json FILE]

Real plans: the scheduler's own core makes them, one step ahead of what is folded, over a real fold. There is no engine
and no bus; all happens in one thread. Scenarios:

decode   the same sequences in every step
churn    one sequence ends with its last token and another one joins, in every second step
prefill  all but one decode, and one computes a long prompt in chunks of 256 tokens
"""

import argparse
import json
import random
import time
from pathlib import Path

import numpy as np

from bench.core.percentiles import percentile
from bench.report.rows import save_rows
from bench.shard_messages import endless_request, ready_worker
from services.scheduler.core.scheduler import Scheduler
from services.worker.core.plan_columns import PlanColumns
from services.worker.core.plan_executor import PlanExecutor
from services.worker.engine.interface import StepOutput
from shared.log.fold import Fold
from shared.messages.codec import decoder, encode
from shared.messages.packed import pack_tokens
from shared.messages.pipeline import StepPlan
from shared.messages.sampling import Sampling

SCENARIOS = ("decode", "churn", "prefill")
NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN, VOCAB_SIZE = 1 << 15, 16, 8192, 49152
CHUNK = 256
PROMPT = 24
WARM_UP = 20

_decode_plan = decoder(StepPlan)


class Shard:
    """A scheduler and a worker without anything between them."""

    def __init__(self, num_sequences: int) -> None:
        self.random = random.Random(1)
        self.fold = Fold()
        self.scheduler = Scheduler()
        self.executor = PlanExecutor("w", NUM_BLOCKS, BLOCK_SIZE, MAX_MODEL_LEN, VOCAB_SIZE)
        self.executor.open_epoch()
        heartbeat = ready_worker(
            "w",
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            max_num_seqs=num_sequences,
            max_num_batched_tokens=num_sequences + CHUNK,
            max_model_len=MAX_MODEL_LEN,
            enable_prefix_caching=False,
        )
        self.scheduler.add_worker(heartbeat, 0)
        self._known_unique = b""
        self._plans: list[bytes] = []

    def ask(self, num_prompt_tokens: int, max_tokens: int) -> None:
        """A new request enters the log."""
        seq = self.fold.seq + 1
        prompt = [self.random.randrange(VOCAB_SIZE) for _ in range(num_prompt_tokens)]
        sampling = Sampling(max_tokens=max_tokens, seed=seq, temperature=0.0)
        request = endless_request(seq, pack_tokens(prompt), sampling)
        for state in self.fold.apply("req", encode(request), seq, seq).sequences:
            self.scheduler.add(state)

    def step(self) -> tuple[float, float, bool]:
        """One step, with the plan of the next one made before its result is known.

        Seconds of the event loop (decoding the plan) and of the engine's thread, and whether the step was foretold.
        """
        while (plan := self.scheduler.schedule("w")) is not None:
            self._plans.append(encode(plan))
        data = self._plans.pop(0)
        begun = time.perf_counter()
        columns = PlanColumns(_decode_plan(data), self._known_unique)
        decoded = time.perf_counter()
        step = self.executor.begin(columns)
        started = time.perf_counter()
        num_rows = 0 if step.batch is None else len(step.batch.sampled)
        tokens = np.array([self.random.randrange(VOCAB_SIZE) for _ in range(num_rows)], dtype=np.int32)
        ended = time.perf_counter()
        frame = encode(self.executor.finish(step, StepOutput(tokens)))
        finished = time.perf_counter()
        self._known_unique = columns.plan.sequences
        seq = self.fold.seq + 1
        for sequence in self.fold.apply("out", frame, seq, seq).sequences:
            if sequence.end is not None:
                self.scheduler.end(sequence.id)
        self.scheduler.update("w", columns.step)
        return decoded - begun, started - decoded + finished - ended, step.run is not None


def measure(scenario: str, num_sequences: int, num_steps: int) -> dict[str, object]:
    """One row: microseconds of a step."""
    shard = Shard(num_sequences)
    num_fixed = {"decode": num_sequences, "churn": num_sequences - 1, "prefill": num_sequences - 1}[scenario]
    for _ in range(num_fixed):
        shard.ask(PROMPT, MAX_MODEL_LEN - 2 * PROMPT)
    for _ in range(WARM_UP + num_sequences * PROMPT // CHUNK):
        shard.step()
    loop_s, thread_s, num_foretold = [], [], 0
    for _ in range(num_steps):
        if shard.scheduler.num_running < num_sequences and not shard.scheduler.num_waiting:
            shard.ask(*(PROMPT, 2) if scenario == "churn" else (MAX_MODEL_LEN // 2, 2))
        decode_s, step_s, was_foretold = shard.step()
        loop_s.append(decode_s)
        thread_s.append(step_s)
        num_foretold += was_foretold
    ordered_s = sorted(thread_s)
    return {
        "scenario": scenario,
        "sequences": num_sequences,
        "steps": num_steps,
        "foretold": num_foretold,
        "thread_us_p50": round(1e6 * percentile(ordered_s, 50), 1),
        "thread_us_p90": round(1e6 * percentile(ordered_s, 90), 1),
        "thread_us_p99": round(1e6 * percentile(ordered_s, 99), 1),
        "thread_us_mean": round(1e6 * sum(thread_s) / num_steps, 1),
        "loop_decode_us_mean": round(1e6 * sum(loop_s) / num_steps, 1),
    }


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 256])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [measure(scenario, count, options.steps) for scenario in SCENARIOS for count in options.sequences]
    for row in rows:
        print(json.dumps(row))
    if options.json:
        save_rows(options.json, "worker_step", rows)


if __name__ == "__main__":
    main()
