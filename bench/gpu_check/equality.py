"""End to end: the GPU's greedy tokens against the CPU engine's in float32.

Both engines have the same weights, which are numbers of bfloat16, and go the same way: after each step the GPU's token
is added for both, so that every step is compared and not only those before the first difference. Where the GPU chooses
another token than float32 does, bfloat16's rounding may be the reason: such a token counts as a tie if float32 has it
at most a small share of the logits' spread below the likeliest.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bench.gpu_check.engines import BenchEngine, Options, make_engine
from bench.gpu_check.findings import Findings
from bench.gpu_check.models import SMOLLM2, random_weights, small
from bench.gpu_check.steps import Sequences, random_prompts
from bench.gpu_check.where import Where
from services.worker.engine.cpu import CpuEngine
from shared.repository.config import ModelConfig
from shared.repository.errors import ModelError
from shared.repository.store import ModelRepository
from shared.repository.weights import iter_weights

PROMPT_LENS = (1, 2, 17, 40, 64, 100, 150, 200)
NUM_STEPS = 16
TIE = 0.06  # of the standard deviation of float32's logits
MOST_TIES = 0.15  # of all tokens
MOST_ERROR = 0.05  # of the norm of float32's logits
REAL_MODEL = "smollm2-135m"


@dataclass(slots=True)
class Agreement:
    """Of one token after another. worst_error: of a row of logits, as a share of its norm. unsampled: tokens that are
    not the likeliest of the GPU's own logits."""

    num_equal: int = 0
    num_ties: int = 0
    num_wrong: int = 0
    num_unsampled: int = 0
    worst_error: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Compared."""
        return self.num_equal + self.num_ties + self.num_wrong

    @property
    def is_good(self) -> bool:
        """Nothing is wrong, and rounding explains the rest."""
        few_ties = self.num_ties <= MOST_TIES * self.num_tokens
        return few_ties and not self.num_wrong + self.num_unsampled and self.worst_error <= MOST_ERROR

    def told(self) -> str:
        """In numbers."""
        return (
            f"{self.num_equal} of {self.num_tokens} tokens equal, {self.num_ties} ties within rounding, "
            f"{self.num_wrong} wrong, {self.num_unsampled} not sampled as the logits say; logits off by at most "
            f"{self.worst_error:.2%} of their norm"
        )

    def compare(self, tokens: Tensor, logits: Tensor, exact: Tensor) -> None:
        """A step. tokens: int64 [R] of the GPU; logits: its own, exact: those of float32, [R, vocabulary]."""
        error = (logits - exact).norm(dim=1) / exact.norm(dim=1)
        self.worst_error = max(self.worst_error, float(error.nan_to_num(nan=float("inf")).max()))
        self.num_unsampled += int((tokens != logits.argmax(dim=1)).sum())
        chosen = exact.gather(1, tokens.unsqueeze(1)).squeeze(1)
        gaps = (exact.max(dim=1).values - chosen) / exact.std(dim=1)
        self.num_equal += int((gaps == 0).sum())
        self.num_ties += int(((gaps > 0) & (gaps <= TIE)).sum())
        self.num_wrong += int((~(gaps <= TIE)).sum())


def run(findings: Findings, where: Where) -> None:
    """SmolLM2's shape with random weights; on a device the real model as well, if it is there."""
    config = small(SMOLLM2) if where.is_dry else SMOLLM2
    lens, num_steps = (PROMPT_LENS[1:4], 3) if where.is_dry else (PROMPT_LENS, NUM_STEPS)
    layers = f"{config.num_hidden_layers} layers, vocabulary {config.vocab_size}"
    agreement = compare(config, list(random_weights(config, seed=1)), lens, num_steps, where)
    findings.check(f"SmolLM2's shape ({layers}), random weights", agreement.is_good, agreement.told())
    try:
        stored = ModelRepository().open(REAL_MODEL)
    except ModelError:
        findings.note(f"{REAL_MODEL} itself is not on this machine.")
        return
    if where.is_dry:
        findings.note(f"{REAL_MODEL} itself is on this machine; a dry run leaves it out.")
        return
    agreement = compare(stored.config, list(iter_weights(stored)), lens, num_steps, where)
    findings.check(f"{REAL_MODEL} itself", agreement.is_good, agreement.told())


def compare(
    config: ModelConfig, weights: Iterable[tuple[str, Tensor]], lens: tuple[int, ...], num_steps: int, where: Where
) -> Agreement:
    """All prompts together, then so many decode steps."""
    rounded = [(name, tensor.to(torch.bfloat16)) for name, tensor in weights]
    options = Options(max_model_len=512, max_num_seqs=8, max_num_batched_tokens=1024, kv_cache_memory_bytes=256 << 20)
    engine = make_engine(config, rounded, options, where)
    exact = CpuEngine(
        "random",
        "1",
        config,
        rounded,
        Options(dtype="float32", max_model_len=512, kv_cache_memory_bytes=256 << 20),
    )
    prompts = [random_prompts(1, length, config.vocab_size, seed=length)[0] for length in lens]
    own, others = (Sequences(prompts, max(lens) + num_steps + 1, each.block_size) for each in (engine, exact))
    return _follow(engine, exact, own, others, num_steps)


def _follow(engine: BenchEngine, exact: CpuEngine, own: Sequences, others: Sequences, num_steps: int) -> Agreement:
    agreement = Agreement()
    [batch], [other] = own.prompt_steps(1024), others.prompt_steps(1024)
    for _ in range(num_steps):
        sampled = engine.step(batch).tokens
        logits = engine.compute_logits(batch).cpu()  # the same once more: writes the same keys and values
        agreement.compare(torch.from_numpy(sampled.astype(np.int64)), logits, exact.compute_logits(other))
        own.add(sampled.tolist())
        others.add(sampled.tolist())
        batch, other = own.decode_step(), others.decode_step()
    return agreement
