"""The peer of the engine: transformers' continuous batching (generate_batch), same shapes, prompts and lengths.

In a process of its own: what it leaves in the device's memory is none of ours. Decoding is timed from when every
sequence has its first token.
"""

from typing import Any

import msgspec
import torch

from bench.gpu_check.findings import Findings
from bench.gpu_check.models import small
from bench.gpu_check.steps import random_prompts
from bench.gpu_check.throughput import LOAD, TABLE, TINY_LOAD, Load
from bench.gpu_check.where import Where
from bench.peers.drivers.generate_batch import answer
from shared.repository.config import ModelConfig, to_huggingface

WHO = "transformers generate_batch"


def measure(findings: Findings, where: Where, config: ModelConfig) -> None:
    """A row for each batch size."""
    import transformers

    findings.note(f"transformers {transformers.__version__}, attention sdpa, unless flash-attn is installed.")
    load = TINY_LOAD if where.is_dry else LOAD
    model = make_model(msgspec.structs.replace(small(config), num_hidden_layers=1) if where.is_dry else config, where)
    vocab_size = int(model.config.vocab_size)
    answer(model, order_of(load, load.batch_sizes[0], vocab_size))  # libraries warm up; it captures graphs each time
    for batch_size in load.batch_sizes:
        found = figures(answer(model, order_of(load, batch_size, vocab_size)))
        findings.row(TABLE, batch=batch_size, who=WHO, **({} if where.is_dry else found))


def make_model(config: ModelConfig, where: Where) -> Any:
    """With random weights in bfloat16, on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM

    document = to_huggingface(config, eos_token_ids=(0,), bos_token_id=None)
    llama = LlamaConfig(**{**document, "dtype": "bfloat16"})
    llama._attn_implementation = "sdpa"
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(where.device):
            model: Any = LlamaForCausalLM(llama)
            return model.eval()
    finally:
        torch.set_default_dtype(before)


def order_of(load: Load, batch_size: int, vocab_size: int) -> dict[str, Any]:
    """For the peer's driver."""
    prompts = random_prompts(batch_size, load.num_prompt_tokens, vocab_size)
    return {"requests": [[prompt, load.num_output_tokens] for prompt in prompts], "streams": batch_size}


def figures(answered: dict[str, Any]) -> dict[str, float]:
    """From the seconds of each token."""
    stamps: list[list[float]] = [stamps for _, stamps in answered["requests"]]
    admitted_s = min(admitted for admitted, _ in answered["requests"])
    begun_s, ended_s = max(each[0] for each in stamps), max(each[-1] for each in stamps)
    num_decoded = sum(stamp > begun_s for each in stamps for stamp in each)
    return {
        "decode tokens/s": round(num_decoded / (ended_s - begun_s)),
        "all tokens/s": round(sum(map(len, stamps)) / (ended_s - admitted_s)),
    }
