"""Tokens/s at SmolLM2-135M's shape."""

from bench.gpu_check.findings import Findings
from bench.gpu_check.models import SMOLLM2
from bench.gpu_check.throughput import measure
from bench.gpu_check.where import Where


def run(findings: Findings, where: Where) -> None:
    """See throughput."""
    measure(findings, where, SMOLLM2)
