"""What quantisation costs in quality: perplexity on a fixed text, and how often the likeliest token stays the same.

python -m bench.quality [--model NAME] [--others NAME ...] [--json FILE]

The text is bench/data/quality.txt, computed as one sequence by the worker's engine. Every token is predicted from all
before it. Rows: float32 (torch), bfloat16 (what the others are compared with), int8, and the GGUF file's own blocks;
then other models that are stored, such as `tokenbus model quantize` made of this one, in bfloat16.
"""

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from bench.engine_options import BenchEngineOptions
from bench.report.rows import save_rows
from services.worker.engine.cpu import CpuEngine
from services.worker.engine.interface import RowSampling, StepInput
from shared.messages.sampling import Sampling
from shared.repository.store import ModelRepository
from shared.repository.stored_model import StoredModel

TEXT = Path(__file__).parent / "data" / "quality.txt"
ROWS_OF_A_STEP = 64
BASELINE = "bfloat16"
_BFLOAT16 = BenchEngineOptions(dtype="bfloat16", max_num_seqs=ROWS_OF_A_STEP, max_model_len=None)
ENGINES = {
    BASELINE: _BFLOAT16,
    "float32": replace(_BFLOAT16, dtype="float32", cpu_kernels="torch"),
    "int8": replace(_BFLOAT16, quantization="int8"),
    "gguf": replace(_BFLOAT16, quantization="gguf"),
}


@dataclass(frozen=True, slots=True)
class Quality:
    """perplexity: of the text. Against the baseline, over all tokens: agreement is the share with the same likeliest
    token, divergence the mean Kullback-Leibler divergence from the baseline's distribution, in nats."""

    perplexity: float
    agreement: float
    divergence: float


def main() -> None:
    """Measure, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--others", nargs="+", default=[], metavar="NAME", help="with the same vocabulary")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = ModelRepository().ensure(options.model)
    token_ids = text_token_ids(model)
    names = list(ENGINES) if model.weight_format == "gguf" else [name for name in ENGINES if name != "gguf"]
    rows: list[dict[str, Any]] = []
    baseline = torch.empty(0)
    runs = [(model, name) for name in names] + [(ModelRepository().open(other), BASELINE) for other in options.others]
    for measured, name in runs:
        engine = CpuEngine.load(measured, ENGINES[name])
        log_probs = text_log_probs(engine, token_ids)
        if name == BASELINE and measured is model:
            baseline = log_probs
        shown = _shown(compare(log_probs, baseline, token_ids))
        rows.append({"model": measured.name, "engine": name, "kernels": engine.forward.kernels, **shown})
        print(json.dumps(rows[-1]), flush=True)
        del engine
    if options.json:
        settings = {"model": model.name, "weights": model.weight_files[0].name, "tokens": len(token_ids)}
        save_rows(options.json, "quality", rows, settings)


def text_log_probs(engine: CpuEngine, token_ids: NDArray[np.int32]) -> Tensor:
    """float32 [tokens - 1, vocabulary]: log-probabilities of every token from the second on, given all before it."""
    steps = [
        engine.compute_logits(_step(engine, token_ids, first, min(first + ROWS_OF_A_STEP, len(token_ids) - 1)))
        for first in range(0, len(token_ids) - 1, ROWS_OF_A_STEP)
    ]
    return torch.cat([logits.log_softmax(dim=-1) for logits in steps])


def compare(log_probs: Tensor, baseline: Tensor, token_ids: NDArray[np.int32]) -> Quality:
    """log_probs, baseline: as text_log_probs returns them."""
    targets = torch.from_numpy(token_ids[1:].astype(np.int64))
    likelihood = log_probs.gather(1, targets.unsqueeze(1)).double()
    same = log_probs.argmax(dim=1) == baseline.argmax(dim=1)
    divergence = 0.0
    for first in range(0, len(targets), ROWS_OF_A_STEP):
        expected, actual = (rows[first : first + ROWS_OF_A_STEP].double() for rows in (baseline, log_probs))
        divergence += float((expected.exp() * (expected - actual)).sum())
    return Quality(float((-likelihood.mean()).exp()), float(same.double().mean()), divergence / len(targets))


def _step(engine: CpuEngine, token_ids: NDArray[np.int32], first: int, last: int) -> StepInput:
    """Tokens first..last - 1 of the text, so that each one's logits come out: as sequences of one new token each that
    share the blocks of the text so far."""
    positions = np.arange(first, last, dtype=np.int64)
    num_rows, num_blocks = last - first, -(-last // engine.block_size)
    sampling = Sampling(max_tokens=1, temperature=0.0)
    return StepInput(
        token_ids=token_ids[first:last],
        positions=positions,
        slot_mapping=positions,
        cu_seqlens_q=np.arange(num_rows + 1, dtype=np.int32),
        context_lens=(positions + 1).astype(np.int32),
        block_tables=np.tile(np.arange(num_blocks, dtype=np.int32), (num_rows, 1)),
        sampled=np.arange(num_rows, dtype=np.int32),
        output_positions=np.zeros(num_rows, dtype=np.int32),
        rows=[RowSampling(sampling, 1) for _ in range(num_rows)],
    )


def text_token_ids(model: StoredModel) -> NDArray[np.int32]:
    """Of the text."""
    tokenizer = Tokenizer.from_file(str(model.tokenizer_file))
    return np.array(tokenizer.encode(TEXT.read_text()).ids, dtype=np.int32)


def _shown(quality: Quality) -> dict[str, float]:
    return {
        "perplexity": round(quality.perplexity, 4),
        "agreement": round(quality.agreement, 4),
        "divergence": round(quality.divergence, 5),
    }


if __name__ == "__main__":
    main()
