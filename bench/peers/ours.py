"""Our own node, as one side of a comparison."""

import contextlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bench.client.target import PromptFormat, Target
from bench.machine import this_machine
from bench.node import Node
from bench.peers.candidate import Description, Served, describe
from bench.processes import ProcessMeter

ENGINE = ("--engine", "cpu", "--max-num-seqs", "16", "--max-model-len", "2048")
# What each variant of the engine suite adds. gguf: the file's own 4-bit blocks.
VARIANTS: dict[str, Sequence[str]] = {
    "bf16": ("--dtype", "bfloat16"),
    "int8": ("--dtype", "bfloat16", "--quantization", "int8"),
    "gguf": ("--dtype", "bfloat16", "--quantization", "gguf"),
}


@dataclass(frozen=True, slots=True)
class Ours:
    """options: of `tokenbus up`."""

    name: str
    options: Sequence[str]
    endpoint: str = ""
    prompt_format: PromptFormat = "auto"
    versions: dict[str, str] = field(default_factory=lambda: dict(this_machine().versions))

    def describe(self) -> Description:
        """Its command; port and data folder are chosen by each start."""
        return describe([shlex.join(["tokenbus", "up", *self.options])], self.versions)

    @contextlib.contextmanager
    def open(self) -> Iterator[Served]:
        """Raises BenchError."""
        with Node(*self.options) as node:
            target = Target(
                base_url=node.url, model=node.model, endpoint=self.endpoint, prompt_format=self.prompt_format
            )
            yield Served(target, ProcessMeter.of_node(node.data_dir))


def engine(variant: str, model: str, more: Sequence[str] = ()) -> Ours:
    """A variant of the CPU engine."""
    return Ours(f"tokenbus {variant}", [*ENGINE, *VARIANTS[variant], "--model", model, *more])


def fake(endpoint: str, options: Sequence[str]) -> Ours:
    """The control plane alone, with an engine that makes tokens up. Text in, so that it tokenizes."""
    return Ours("tokenbus", options, endpoint, "text")
