"""NVIDIA Dynamo's frontend with its mocker in the engine's place: a control plane without a GPU."""

from pathlib import Path

from bench.peers.candidate import ServerPeer
from bench.peers.environment import Environment
from bench.peers.processes import Command

NAME = "dynamo"
PACKAGES = ("ai-dynamo==1.6.1", "ai-dynamo-runtime==1.6.1")
# What its frontend and mocker import; all that it asks for would bring engines for GPUs.
NEEDED = (
    *("aiohttp", "msgspec", "prometheus-client", "pyzmq", "tqdm", "transformers", "typing-extensions"),
    *("zstandard", "pyyaml", "uvloop", "kubernetes", "redis"),
)
PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")


def install(environment: Environment) -> None:
    """Raises BenchError."""
    environment.create()
    environment.install("--no-deps", *PACKAGES)
    environment.install(*NEEDED)
    environment.finish()


def make(environment: Environment, model: Path, endpoint: str) -> ServerPeer:
    """model: folder of its tokenizer. The mocker makes no pause of its own (speed-up 0: no simulated time)."""

    def commands(port: int, folder: Path) -> list[Command]:
        host = "127.0.0.1"
        env = {
            "DYN_FILE_KV": str(folder),
            "DYN_TCP_RPC_HOST": host,
            "DYN_TCP_RESPONSE_STREAM_HOST": host,
            "DYN_EVENT_PLANE_HOST": host,
            "DYN_LOG": "warn",
            "HF_HUB_OFFLINE": "1",
        }
        python = [str(environment.python), "-m"]
        frontend = [*python, "dynamo.frontend", "--http-port", str(port), "--http-host", host, *PLANES]
        mocker = [*python, "dynamo.mocker", "--model-path", str(model), "--model-name", "m", "--speedup-ratio", "0"]
        return [Command(frontend, env), Command([*mocker, *PLANES], env)]

    versions = environment.versions(("ai-dynamo", "ai-dynamo-runtime", "transformers"))
    # It takes ignore_eos as vLLM does. Text in, so that it tokenizes as ours does.
    return ServerPeer(
        name=NAME,
        backend="vllm",
        model="m",
        commands=commands,
        versions=versions,
        endpoint=endpoint,
        prompt_format="text",
    )
