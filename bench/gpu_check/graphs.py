"""Capture and replay: a captured decode step must compute what the same step computes launch by launch.

Also of the attention alone, whose lengths and tables change between replays while its launches stay the same.
"""

import numpy as np
import torch

from bench.gpu_check.attention_inputs import Inputs, Row, make_inputs
from bench.gpu_check.engines import BenchEngine, Options, make_engine
from bench.gpu_check.findings import Findings
from bench.gpu_check.models import SMOLLM2, random_weights, small
from bench.gpu_check.steps import Sequences, decode, random_prompts
from bench.gpu_check.timing import capture
from bench.gpu_check.where import Where

SIZES = (1, 2, 3, 4, 5, 8, 13, 16)  # some between the captured ones
_ATTENTION_CONTEXT = 2048
_ALLOWED = 2e-2  # of the logits' norm: torch may choose another product for a step that is filled up


def run(findings: Findings, where: Where) -> None:
    """Without a device both ways are launches, which at least compares steps with steps of a larger size."""
    _attention(findings, where)
    _steps(findings, where)


def _attention(findings: Findings, where: Where) -> None:
    row = Row(
        "",
        num_sequences=4,
        context=96 if where.is_dry else _ATTENTION_CONTEXT,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
    )
    inputs = make_inputs(row, where)
    inputs.launch()
    where.wait()
    expected = inputs.out.clone()
    if where.is_dry:
        findings.note("A dry run captures nothing: what is replayed is launched again.")
    replay = inputs.launch if where.is_dry else capture(inputs.launch)
    _compare(findings, where, "attention, replayed", replay, inputs, expected)
    inputs.query.neg_()
    inputs.launch()
    where.wait()
    _compare(findings, where, "attention, replayed with other queries", replay, inputs, inputs.out.clone())


def _ahead(findings: Findings, engine: BenchEngine, vocab_size: int, num_steps: int) -> None:
    """Steps that are launched before the one before them has ended, against one after the other."""
    prompts = random_prompts(5, 20, vocab_size)
    told: list[list[list[int]]] = []
    for is_ahead in (False, True):
        sequences = Sequences(prompts, 24 + num_steps, engine.block_size)
        [batch] = sequences.prompt_steps(512)
        sequences.add(engine.step(batch).tokens.tolist())
        if is_ahead:
            told.append([tokens.tolist() for tokens in decode(engine, sequences, num_steps)])
            continue
        told.append([])
        for _ in range(num_steps):
            told[-1].append(engine.step(sequences.decode_step()).tokens.tolist())
            sequences.add(told[-1][-1])
    num_equal = sum(one == other for one, other in zip(*told, strict=True))
    findings.check("steps launched ahead", num_equal == num_steps, f"{num_equal} of {num_steps} with the same tokens")


def _compare(
    findings: Findings, where: Where, what: str, replay: object, inputs: Inputs, expected: torch.Tensor
) -> None:
    assert callable(replay)
    inputs.out.fill_(float("nan"))
    replay()
    where.wait()
    findings.check(what, torch.equal(inputs.out, expected), "bit for bit")


def _steps(findings: Findings, where: Where) -> None:
    config = small(SMOLLM2)
    weights = list(random_weights(config, seed=2))
    sizes = SIZES[1:4] if where.is_dry else SIZES
    for is_eager in (True, False):
        options = Options(
            max_model_len=256,
            max_num_seqs=16,
            max_num_batched_tokens=512,
            kv_cache_memory_bytes=64 << 20,
            enforce_eager=is_eager,
        )
        engine = make_engine(config, weights, options, where)
        if is_eager:
            eager = engine
    _ahead(findings, engine, config.vocab_size, num_steps=4 if where.is_dry else 24)
    for size in sizes:
        prompts = random_prompts(size, 20, config.vocab_size, seed=size)
        sequences = Sequences(prompts, 32, engine.block_size)
        [batch] = sequences.prompt_steps(512)
        tokens = eager.step(batch).tokens.tolist()
        engine.step(batch)
        sequences.add(tokens)
        step = sequences.decode_step()
        expected, logits = eager.compute_logits(step), engine.compute_logits(step)
        worst = float(((logits - expected).norm(dim=1) / expected.norm(dim=1)).max())
        is_same = np.array_equal(engine.step(step).tokens, eager.step(step).tokens)
        findings.check(
            f"decode step of {size}, captured against launched",
            worst <= _ALLOWED and is_same,
            f"logits differ by {worst:.1e} of their norm; tokens are {'the same' if is_same else 'others'}",
        )
