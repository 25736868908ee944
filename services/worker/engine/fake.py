"""An engine without a model: it sleeps for a step's time and makes tokens up.

pure     token = f(seed, output position): every worker makes the same text, whatever happens in between
chained  tokens from this process's own entropy: only the log knows them, so that only a correct protocol passes
"""

import time
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from services.worker.engine.interface import RowSampling, StepInput, StepOutput, Swaps
from shared.messages.pipeline import RowLogprobs

_ALL_BITS = 2**64 - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

FakeMode = Literal["pure", "chained"]


class FakeEngine:
    """See services.worker.engine.interface.Engine. step_s: seconds that each step takes, however many its tokens.

    token_ids: int32, the ids it draws from (those of the vocabulary that are not special); allowed_token_ids and
    bad_token_ids of a request narrow them. EOS and stop tokens hence only come where a request allows them.
    """

    device = "fake"
    kernels = "none"

    def __init__(
        self,
        *,
        model: str,
        model_version: str,
        vocab_size: int,
        token_ids: NDArray[np.int32],
        num_blocks: int,
        block_size: int,
        max_model_len: int,
        step_s: float,
        mode: FakeMode,
        num_swap_slots: int = 0,
    ) -> None:
        self.model = model
        self.model_version = model_version
        self.vocab_size = vocab_size
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.num_swap_slots = num_swap_slots
        self._step_s = step_s
        self._mode = mode
        self._token_ids = token_ids
        self._wishes = _Wishes([])
        self._busy_until_s = 0.0
        self._entropy = np.random.Generator(np.random.SFC64())

    def warm_up(self) -> None:
        """Nothing to warm up."""

    def step(self, batch: StepInput) -> StepOutput:
        """See Engine."""
        launched = self.launch(batch)
        launched.wait()
        return launched.output()

    def launch(self, batch: StepInput) -> "FakeStep":
        """Draw one token a row. Its time begins when that of the step before it is over."""
        self._busy_until_s = max(self._busy_until_s, time.perf_counter()) + self._step_s
        if batch.rows is not self._wishes.rows:
            self._wishes = _Wishes(batch.rows)
        wishes = self._wishes
        keys = self._keys(wishes, batch.output_positions)
        tokens = self._token_ids[keys % np.uint64(len(self._token_ids))]
        for row in wishes.narrowed:
            tokens[row] = self._narrowed(int(keys[row]), batch.rows[row])
        logprobs: list[RowLogprobs | None] = []
        if wishes.has_logprobs:
            logprobs = [self._logprobs(int(token), row) for token, row in zip(tokens, batch.rows, strict=True)]
        return FakeStep(self._busy_until_s, StepOutput(tokens, logprobs))

    def swap(self, swaps: Swaps) -> None:
        """Nothing: tokens owe nothing to blocks."""

    def _keys(self, wishes: "_Wishes", output_positions: NDArray[np.int32]) -> NDArray[np.uint64]:
        """uint64 [R]: a hash of (seed, position), or entropy."""
        if self._mode == "chained":
            return self._entropy.integers(0, 2**64, len(wishes.rows), dtype=np.uint64)
        return _mix(wishes.seeds + output_positions.astype(np.uint64))

    def _narrowed(self, key: int, row: RowSampling) -> int:
        """A token for a request that narrows the choice; all of them bad leaves the choice as it was."""
        allowed = np.array(row.sampling.allowed_token_ids or self._token_ids, dtype=np.int32)
        choice = np.setdiff1d(allowed, np.array(row.sampling.bad_token_ids, dtype=np.int32))
        return int(choice[key % len(choice)]) if len(choice) else int(allowed[key % len(allowed)])

    def _logprobs(self, token: int, row: RowSampling) -> RowLogprobs | None:
        """The chosen token as the likeliest with probability 1/2, each alternative half of the one before."""
        wanted = row.sampling.logprobs
        if wanted is None:
            return None
        place = int(np.searchsorted(self._token_ids, token))
        others = (int(self._token_ids[(place + step) % len(self._token_ids)]) for step in range(1, wanted))
        top_ids = (token, *others)[:wanted]
        halves = tuple(-(rank + 1) * float(np.log(2.0)) for rank in range(len(top_ids)))
        return RowLogprobs(-float(np.log(2.0)), 1, top_ids, halves)


class FakeStep:
    """See Launched."""

    def __init__(self, until_s: float, output: StepOutput) -> None:
        self._until_s = until_s
        self._output = output

    def wait(self) -> None:
        """Sleep until the step's time is over."""
        remaining_s = self._until_s - time.perf_counter()
        if remaining_s > 0:
            time.sleep(remaining_s)

    def output(self) -> StepOutput:
        """Its tokens."""
        return self._output


class _Wishes:
    """What rows ask for, looked up once for as long as the same list of them comes."""

    def __init__(self, rows: list[RowSampling]) -> None:
        self.rows = rows
        self.seeds = _mix(np.array([row.sampling.seed & _ALL_BITS for row in rows], dtype=np.uint64))
        narrow = (bool(row.sampling.allowed_token_ids or row.sampling.bad_token_ids) for row in rows)
        self.narrowed = [index for index, is_narrow in enumerate(narrow) if is_narrow]
        self.has_logprobs = any(row.sampling.logprobs is not None for row in rows)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64, the finaliser of Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014)."""
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _MIX_1
    values = (values ^ (values >> np.uint64(27))) * _MIX_2
    return values ^ (values >> np.uint64(31))
