"""The parts in their order: first whether all is right, then how fast it is."""

from dataclasses import dataclass

TOTAL_LIMIT_S = 455.0  # of the eight minutes; the rest is for installing wheels and writing the report


@dataclass(frozen=True, slots=True)
class Part:
    """module: in this package, with a function run(findings, where). limit_s: on a device."""

    name: str
    title: str
    module: str
    limit_s: float


PARTS = (
    Part("ptx", "PTX self-tests", "ptx", 20),
    Part("kernels", "Every kernel against its reference", "references", 70),
    Part("graphs", "Graph capture and replay", "graphs", 25),
    Part("equality", "Greedy tokens, GPU against CPU float32", "equality", 40),
    Part("sanitizer", "compute-sanitizer", "sanitizer", 50),
    Part("attention", "Attention", "attention", 45),
    Part("attention-flex", "Attention: flex_attention", "attention_flex", 35),
    Part("attention-flashinfer", "Attention: FlashInfer", "attention_flashinfer", 15),
    Part("smollm2", "Tokens/s, SmolLM2-135M's shape", "throughput_smollm2", 25),
    Part("llama", "Tokens/s, Llama-3.1-8B's shape", "throughput_llama", 35),
    Part("smollm2-peer", "Tokens/s, SmolLM2-135M's shape, generate_batch", "peer_smollm2", 25),
    Part("llama-peer", "Tokens/s, Llama-3.1-8B's shape, generate_batch", "peer_llama", 30),
    Part("idle-gap", "The control plane's idle gap", "idle_gap", 40),
)


def part_of(name: str) -> Part:
    """Raises KeyError."""
    return {part.name: part for part in PARTS}[name]
