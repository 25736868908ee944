"""transformers' generate_batch as a servant: a plan as one line of JSON in, what became of it as one line out.

In: {"requests": [[token ids, number of output tokens], ...], "streams": most at a time}. Out: {"seconds": of all,
"requests": [[seconds of admission, [seconds of each token]], ...]}, both from the start. The first line out is "ready".
"""

import inspect
import json
import sys
import time
from typing import Any

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

PAGE_TOKENS = 64
_PAGE_SIZE = next(  # its name has changed
    name for name in ("page_size", "block_size") if name in inspect.signature(ContinuousBatchingConfig).parameters
)


def answer(model: Any, order: dict[str, Any]) -> dict[str, Any]:
    """One generate_batch for each number of output tokens in the order; all of our workloads have just one."""
    requests, streams = order["requests"], order["streams"]
    (num_output,) = {num for _, num in requests}
    longest = max(len(ids) for ids, _ in requests) + num_output
    page_size: dict[str, Any] = {_PAGE_SIZE: PAGE_TOKENS}
    batching = ContinuousBatchingConfig(
        **page_size,
        num_blocks=streams * -(-longest // PAGE_TOKENS) + streams,
        max_requests_per_batch=streams,
        max_batch_tokens=2048,
    )
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=num_output, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    begun = time.perf_counter()
    done = model.generate_batch(
        [ids for ids, _ in requests],
        generation_config=config,
        continuous_batching_config=batching,
        record_timestamps=True,
    )
    seconds = time.perf_counter() - begun
    rows = [[each.lifespan[0] - begun, [stamp - begun for stamp in each.timestamps]] for each in done.values()]
    return {"seconds": seconds, "requests": rows}


def main() -> None:
    """Arguments: folder of the model, number of threads, attention."""
    folder, num_threads, attention = sys.argv[1:4]
    torch.set_num_threads(int(num_threads))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, attn_implementation=attention)
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(model, json.loads(line))), file=out, flush=True)


if __name__ == "__main__":
    main()
