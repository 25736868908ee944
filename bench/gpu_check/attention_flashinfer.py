"""A peer of our attention, where it is installed: FlashInfer's decoding on the same paged cache."""

import importlib
import importlib.util
from functools import partial
from typing import Any

import numpy as np
import torch

from bench.gpu_check.attention_inputs import BLOCK_SIZE, DECODE, Inputs, make_inputs
from bench.gpu_check.attention_table import Clock, Peer, add_decode, add_peer
from bench.gpu_check.findings import Findings
from bench.gpu_check.where import Where

WHO = "FlashInfer"
_WORKSPACE_BYTES = 128 << 20


def run(findings: Findings, where: Where) -> None:
    """Its plan is made outside of the time that is measured, as ours is."""
    if importlib.util.find_spec("flashinfer") is None:
        findings.skip("FlashInfer is not installed")
        return
    if where.is_dry:
        findings.skip("a dry run has nothing for it to run on")
        return
    flashinfer, clock = importlib.import_module("flashinfer"), Clock(where)
    findings.note(f"FlashInfer {getattr(flashinfer, '__version__', '')}")
    for row in DECODE:
        inputs = make_inputs(row, where)
        inputs.launch()
        add_peer(findings, clock, row, WHO, partial(_planned, flashinfer, inputs), add_decode, inputs.out)


def _planned(flashinfer: Any, inputs: Inputs) -> Peer:
    row, device = inputs.row, inputs.query.device
    lengths = np.array(row.lengths)
    counts = -(-lengths // BLOCK_SIZE)
    pages = np.concatenate([table[:count] for table, count in zip(inputs.tables, counts, strict=True)])
    columns = (np.concatenate(([0], np.cumsum(counts))), pages, lengths - (counts - 1) * BLOCK_SIZE)
    workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        *(torch.from_numpy(column.astype(np.int32)).to(device) for column in columns),
        row.num_heads,
        row.num_kv_heads,
        row.head_dim,
        BLOCK_SIZE,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    return lambda: wrapper.run(inputs.query, (inputs.key_cache, inputs.value_cache))
