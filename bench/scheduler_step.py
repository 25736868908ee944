"""What one step costs the scheduler's core: `update()` absorbs the folded frame, `schedule()` makes the next plan.

python -m bench.scheduler_step [--sequences 16 64 256 1024] [--output-tokens 32 4096] [--json FILE]

All sequences decode, two plans are outstanding, as under a leader. There is no bus; folding the frame and encoding the
plan, which the scheduler's process does as well, are rows of their own. Times are CPU time of the thread.
"""

import argparse
import itertools
import json
import time
from pathlib import Path

from bench.core.percentiles import percentile
from bench.report.rows import save_rows
from bench.shard_messages import endless_request, ready_worker
from services.scheduler.core.scheduler import Scheduler
from shared.log.fold import Fold
from shared.messages.codec import encode
from shared.messages.packed import INT32, UINT32, UINT64, pack, pack_tokens
from shared.messages.pipeline import Rows
from shared.messages.sampling import Sampling
from shared.prefix_hash import extend_by_one

PROMPT = pack_tokens(range(100, 148))
BLOCK_SIZE = 16
TOKEN = 42
WORKER = "worker-0"
BUDGET = 1 << 16


class DecodingShard:
    """A fold and a scheduler's core with sequences that all stream, and two plans outstanding.

    num_begun: output tokens that each has at first. max_tokens: at most so many each.
    """

    def __init__(self, num_sequences: int, num_begun: int, max_tokens: int) -> None:
        self.fold = Fold()
        sampling = Sampling(max_tokens=max_tokens)
        for number in range(num_sequences):
            self.fold.apply("req", encode(endless_request(number, PROMPT, sampling)), self.fold.seq + 1, 1)
        for state in self.fold.sequences.values():
            for _ in range(num_begun):
                state.tokens.append(TOKEN)
                state.prefix_hash = extend_by_one(state.prefix_hash, TOKEN)
        max_model_len = len(PROMPT) // 4 + max_tokens
        heartbeat = ready_worker(
            WORKER,
            num_blocks=2 * num_sequences * (max_model_len // BLOCK_SIZE + 1),
            block_size=BLOCK_SIZE,
            max_num_seqs=num_sequences,
            max_num_batched_tokens=BUDGET,
            max_model_len=max_model_len,
        )
        self.core = Scheduler()
        self.core.add_worker(heartbeat, epoch=0)
        for state in self.fold.sequences.values():
            self.core.add(state)
        self._step = 0
        while len(self.core.workers[WORKER].outstanding) < 2:
            self.core.schedule(WORKER)

    def step(self) -> tuple[float, float, float, float]:
        """Seconds of folding a frame, update(), schedule() and encoding the plan."""
        frame = self.next_frame()
        times = [time.thread_time()]
        self.fold_frame(frame)
        times.append(time.thread_time())
        self.update()
        times.append(time.thread_time())
        plan = self.core.schedule(WORKER)
        times.append(time.thread_time())
        encode(plan)
        times.append(time.thread_time())
        folded, updated, scheduled, encoded = (after - before for before, after in itertools.pairwise(times))
        return folded, updated, scheduled, encoded

    def fold_frame(self, frame: bytes) -> None:
        """The next record of the log."""
        self.fold.apply("out", frame, self.fold.seq + 1, 1)

    def update(self) -> None:
        """The frame of the oldest outstanding plan was folded."""
        self.core.update(WORKER, self._step)

    def next_frame(self) -> bytes:
        """What the worker answers to its oldest plan."""
        self._step += 1
        planned = self.core.workers[WORKER].outstanding[0]
        rows = [
            (sequence.id, position, sequence.state.prefix_hash)
            for sequence, position in zip(planned.sequences, planned.positions, strict=True)
            if position >= 0
        ]
        numbers, positions, hashes = zip(*rows, strict=True) if rows else ((), (), ())
        return encode(
            Rows(
                worker=WORKER,
                epoch=0,
                step=self._step,
                sequences=pack(UINT64, numbers),
                positions=pack(INT32, positions),
                tokens=pack(INT32, [TOKEN] * len(rows)),
                prefix_hashes=pack(UINT32, hashes),
            )
        )


def measure(num_sequences: int, num_begun: int, num_steps: int) -> dict[str, float]:
    """One row; milliseconds per step."""
    num_warm_up = 4 + num_sequences * (len(PROMPT) // 4 + num_begun) // BUDGET
    shard = DecodingShard(num_sequences, num_begun, num_begun + num_steps + num_warm_up + 8)
    for _ in range(num_warm_up):
        shard.step()
    times = [shard.step() for _ in range(num_steps)]
    both = sorted(updated + scheduled for _, updated, scheduled, _ in times)
    fold_s, update_s, schedule_s, encode_s = (sum(column) / num_steps for column in zip(*times, strict=True))
    return {
        "sequences": num_sequences,
        "output_tokens": num_begun,
        "steps": num_steps,
        "schedule_and_update_ms_p50": round(1e3 * percentile(both, 50), 4),
        "schedule_and_update_ms_p99": round(1e3 * percentile(both, 99), 4),
        "update_ms_mean": round(1e3 * update_s, 4),
        "schedule_ms_mean": round(1e3 * schedule_s, 4),
        "fold_ms_mean": round(1e3 * fold_s, 4),
        "encode_ms_mean": round(1e3 * encode_s, 4),
    }


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--output-tokens", type=int, nargs="+", default=[32, 4096])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [measure(count, begun, options.steps) for begun in options.output_tokens for count in options.sequences]
    for row in rows:
        print(json.dumps(row))
    if options.json:
        save_rows(options.json, "scheduler_step", rows)


if __name__ == "__main__":
    main()
