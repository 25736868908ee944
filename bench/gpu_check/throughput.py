"""End-to-end tokens/s of the engine alone, no services around it, against what the memory's bandwidth allows.

Every sequence has a prompt and then decodes greedily, all in step. A decode step reads the weights once, and the keys
and values of every sequence: at the rate of a plain copy that takes the least time there is.
"""

import time
from dataclasses import dataclass
from statistics import median

import msgspec

from bench.gpu_check.engines import BLOCK_SIZE, BenchEngine, Options, make_engine
from bench.gpu_check.findings import Findings
from bench.gpu_check.models import kv_bytes_of_token, num_weights, random_weights, small
from bench.gpu_check.steps import Sequences, decode, random_prompts
from bench.gpu_check.where import Where
from kernels.check.run import DeviceClock
from shared.repository.config import ModelConfig

TABLE = "Tokens/s"
WEIGHT_BYTES = 2


@dataclass(frozen=True, slots=True)
class Load:
    """Of each batch size the same: tokens of a prompt, and of what follows."""

    batch_sizes: tuple[int, ...] = (1, 16, 64, 256)
    num_prompt_tokens: int = 128
    num_output_tokens: int = 64

    @property
    def max_len(self) -> int:
        """Of a sequence."""
        return self.num_prompt_tokens + self.num_output_tokens

    def mean_context(self) -> float:
        """Of a decode step."""
        return self.num_prompt_tokens + self.num_output_tokens / 2


LOAD, TINY_LOAD = Load(), Load((1, 3), 20, 4)


def measure(findings: Findings, where: Where, config: ModelConfig) -> None:
    """A row for each batch size."""
    load = TINY_LOAD if where.is_dry else LOAD
    if where.is_dry:
        config = msgspec.structs.replace(small(config), num_hidden_layers=1)
    copy_gb_per_s = None if where.is_dry else DeviceClock(where.device).copy_gb_per_s()
    most = max(load.batch_sizes)
    num_blocks = most * -(-load.max_len // BLOCK_SIZE) + 1
    options = Options(
        max_model_len=512,
        max_num_seqs=most,
        max_num_batched_tokens=64 if where.is_dry else 8192,
        kv_cache_memory_bytes=max(num_blocks, 512 // BLOCK_SIZE) * BLOCK_SIZE * kv_bytes_of_token(config),
    )
    begun_s = time.perf_counter()
    engine = make_engine(config, random_weights(config, seed=0, device=where.device), options, where)
    findings.note(
        f"The engine was there after {time.perf_counter() - begun_s:.1f} s, on a device with its graphs captured."
    )
    for batch_size in load.batch_sizes:
        run_batch(engine, config, load, batch_size, options.max_num_batched_tokens)  # libraries warm up
        prompt_s, step_s = run_batch(engine, config, load, batch_size, options.max_num_batched_tokens)
        found = figures(load, batch_size, prompt_s, step_s)
        findings.row(TABLE, batch=batch_size, who="tokenbus", **({} if where.is_dry else found))
        if copy_gb_per_s is not None:
            limit = batch_size / least_step_s(config, load, batch_size, copy_gb_per_s)
            findings.row(TABLE, batch=batch_size, who="limit of the bandwidth", **{"decode tokens/s": round(limit)})
            findings.note(f"Batch {batch_size}: {batch_size / median(step_s) / limit:.0%} of the bandwidth's limit.")


def run_batch(
    engine: BenchEngine, config: ModelConfig, load: Load, batch_size: int, max_num_tokens: int
) -> tuple[float, list[float]]:
    """Seconds of all prompts, and from the tokens of one decode step to those of the next."""
    prompts = random_prompts(batch_size, load.num_prompt_tokens, config.vocab_size)
    sequences = Sequences(prompts, load.max_len, engine.block_size)
    steps = sequences.prompt_steps(max_num_tokens)
    begun_s = time.perf_counter()
    tokens = [token for step in steps for token in engine.step(step).tokens.tolist()]
    prompt_s = time.perf_counter() - begun_s
    sequences.add(tokens)
    step_s, told_s = [], time.perf_counter()
    for _ in decode(engine, sequences, load.num_output_tokens - 1):
        last_s, told_s = told_s, time.perf_counter()
        step_s.append(told_s - last_s)
    return prompt_s, step_s


def figures(load: Load, batch_size: int, prompt_s: float, step_s: list[float]) -> dict[str, float]:
    """Of a row."""
    return {
        "decode tokens/s": round(batch_size / median(step_s)),
        "all tokens/s": round(batch_size * load.num_output_tokens / (prompt_s + sum(step_s))),
        "prompts ms": round(1e3 * prompt_s, 1),
        "step ms": round(1e3 * median(step_s), 3),
    }


def least_step_s(config: ModelConfig, load: Load, batch_size: int, gb_per_s: float) -> float:
    """Of a decode step at half its outputs, by the bytes that it has to read."""
    kept = batch_size * load.mean_context() * kv_bytes_of_token(config)
    return (WEIGHT_BYTES * num_weights(config) + kept) / (1e9 * gb_per_s)
