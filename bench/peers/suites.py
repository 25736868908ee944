"""The two suites: who is measured against whom, and with which plans."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import workloads
from bench.client.target import CHAT, COMPLETIONS
from bench.commands.control_plane import ControlPlaneOptions, fake_engine, streams_plan
from bench.core.plan import Plan
from bench.errors import BenchError
from bench.peers import dynamo, generate_batch, goals, llama_cpp, ours, vllm
from bench.peers.candidate import Candidate
from bench.peers.environment import Environment
from bench.prompts import PromptMaker
from shared.repository.export import export_model
from shared.repository.stored_model import StoredModel

ENGINE_PEERS = (vllm.NAME, llama_cpp.NAME, generate_batch.NAME)
MOCKER_TOKENS_PER_STEP = 8192  # so that a burst of prompts takes both sides as many steps
STREAMS = (1, 64, 256)
WARM_STREAMS = 16
# Against which of our variants each peer is measured.
OPPONENTS = {vllm.NAME: ("bf16", "int8"), llama_cpp.NAME: ("gguf",), generate_batch.NAME: ("bf16",)}
INSTALLERS: dict[str, Callable[[Environment], None]] = {
    vllm.NAME: vllm.install,
    llama_cpp.NAME: llama_cpp.install,
    generate_batch.NAME: generate_batch.install,
    dynamo.NAME: dynamo.install,
}


@dataclass(frozen=True, slots=True)
class Suite:
    """candidates: in the order of their turns. pairs: ours and peer. plans: of a round."""

    candidates: Sequence[Candidate]
    pairs: Sequence[tuple[str, str]]
    warm_plans: Sequence[Plan]
    plans: Callable[[int], Sequence[Plan]]
    goals: Sequence[goals.Goal]


def engine_suite(
    root: Path,
    peers: Sequence[str],
    variants: Sequence[str],
    names: Sequence[str],
    model: StoredModel,
    cores: Sequence[int],
    node_options: Sequence[str] = (),
) -> Suite:
    """peers: of ENGINE_PEERS. variants: of ours. names: of workloads. Raises BenchError."""
    candidates: list[Candidate] = []
    pairs = []
    for peer in peers:
        theirs = _engine_peers(peer, root, model, cores)
        mine = [ours.engine(variant, model.name, node_options) for variant in OPPONENTS[peer] if variant in variants]
        for each in (*mine, *theirs):
            if each.name not in [one.name for one in candidates]:
                candidates.append(each)
        pairs += [(one.name, other.name) for one in mine for other in theirs]
    prompts = PromptMaker.find(model.name)
    warm = workloads.make("warm", prompts)
    wide = Plan("warm", [*warm.requests] * (WARM_STREAMS // len(warm.requests)), WARM_STREAMS)
    return Suite(
        candidates,
        pairs,
        (warm, wide),
        lambda index: [workloads.make(name, prompts, index) for name in names],
        goals.ENGINE,
    )


def control_plane_suite(root: Path, model: StoredModel, is_chat: bool, node_options: Sequence[str] = ()) -> Suite:
    """Ours with the fake engine against Dynamo with its mocker; text in, so that both tokenize. Raises BenchError."""
    environment = Environment(dynamo.NAME, root)
    environment.require()
    endpoint = CHAT if is_chat else COMPLETIONS
    theirs = dynamo.make(environment, hugging_face_folder(root, model), endpoint)
    budget = ["--max-num-batched-tokens", str(MOCKER_TOKENS_PER_STEP)]
    words = [*fake_engine(ControlPlaneOptions(), STREAMS), *budget, "--model", model.name, *node_options]
    mine = ours.fake(endpoint, words)
    prompts = PromptMaker.find(model.name)
    return Suite(
        [mine, theirs],
        [(mine.name, theirs.name)],
        [streams_plan(ControlPlaneOptions(output_len=16, seed=-1), WARM_STREAMS, prompts)],
        lambda index: [streams_plan(ControlPlaneOptions(seed=index), streams, prompts) for streams in STREAMS],
        goals.CONTROL_PLANE,
    )


def _engine_peers(peer: str, root: Path, model: StoredModel, cores: Sequence[int]) -> list[Candidate]:
    environment = Environment(peer, root)
    environment.require()
    if peer == vllm.NAME:
        return [vllm.make(environment, hugging_face_folder(root, model), cores)]
    if peer == generate_batch.NAME:
        return [generate_batch.GenerateBatch(environment, hugging_face_folder(root, model), len(cores))]
    gguf = gguf_file(model)
    return [
        llama_cpp.make(environment, gguf, len(cores)),
        llama_cpp.BatchedBench(environment, gguf, len(cores)),
    ]


def hugging_face_folder(root: Path, model: StoredModel) -> Path:
    """Our very weights in bfloat16, for peers that read no GGUF; written at the first call."""
    folder = root / "models" / f"{model.name}-{model.version}-bf16"
    return folder if folder.is_dir() else export_model(model, folder, "bfloat16")


def gguf_file(model: StoredModel) -> Path:
    """Raises BenchError if the model was stored from another format."""
    for name in model.manifest.weight_files:
        if name.endswith(".gguf"):
            return model.path / name
    raise BenchError(f"{model.name} was not stored as GGUF: llama.cpp cannot serve it")
