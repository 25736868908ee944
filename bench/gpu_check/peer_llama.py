"""The peer's tokens/s at Llama-3.1-8B's shape."""

from bench.gpu_check.findings import Findings
from bench.gpu_check.models import LLAMA
from bench.gpu_check.peer import measure
from bench.gpu_check.where import Where


def run(findings: Findings, where: Where) -> None:
    """See peer."""
    measure(findings, where, LLAMA)
