"""From the C++ sources to a shared library in the user's cache folder.

The library's folder is named by a hash of everything that makes it what it is: sources, headers, flags, the compiler's
version. So an update builds anew, and two versions of Tokenbus on a machine do not meet.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from kernels.native.isa import COMPILER_FLAGS, Level

SOURCES = Path(__file__).parent.parent
LIBRARY = "libtokenbus_cpu.so"
_BUILD_LIMIT_S = 600
_FLAGS = ("-std=c++20", "-O3", "-fPIC", "-pthread", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast")
# g++ 12 warns of its own AVX-512 headers (-Wno-maybe-uninitialized) and of vector types as template arguments.
_WARNINGS = ("-Wall", "-Wextra", "-Wno-psabi", "-Wno-ignored-attributes", "-Wno-maybe-uninitialized")

AroundBuild = Callable[[Path], AbstractContextManager[object]]
"""Given the library that is about to be built; the context lasts as long as the build, and fails with it."""


class BuildError(Exception):
    """The library cannot be built here; the message says why."""


def library_file(
    level: Level,
    cache_dir: Path | None = None,
    defines: tuple[str, ...] = (),
    around_build: AroundBuild = nullcontext,
) -> Path:
    """The library for this level, built if it is not there yet (half a minute). Raises BuildError.

    defines: macros (NAME=VALUE) of builds for tests. around_build: for callers that tell people why nothing seems to
    happen; not called where the library is there, nor while another process builds it.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if not compiler:
        raise BuildError("no C++ compiler: g++ is not on the PATH")
    flags = [*_FLAGS, *_WARNINGS, *COMPILER_FLAGS[level], *(f"-D{macro}" for macro in defines), f"-I{SOURCES.parent}"]
    try:
        folder = (cache_dir or default_cache_dir()) / f"{level}-{_fingerprint(compiler, flags)}"
    except RuntimeError as error:  # a user without a home
        raise BuildError(f"no folder for the library: {error}") from error
    library = folder / LIBRARY
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # several workers start at once: one builds, the others wait
            if not library.exists():
                with around_build(library):
                    _build(compiler, flags, library)
    except OSError as error:
        raise BuildError(f"cannot build in {folder}: {error}") from error
    return library


def default_cache_dir() -> Path:
    """Where libraries are kept: $XDG_CACHE_HOME/tokenbus/kernels, by default under ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenbus" / "kernels"


def _fingerprint(compiler: str, flags: list[str]) -> str:
    version = _run([compiler, "--version"]).stdout
    digest = hashlib.blake2b(digest_size=10)
    for part in (compiler, version, *flags):
        digest.update(part.encode() + b"\0")
    for file in sorted([*SOURCES.glob("*/*.cpp"), *SOURCES.glob("*/*.h")]):
        digest.update(file.relative_to(SOURCES).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def _build(compiler: str, flags: list[str], library: Path) -> None:
    sources = sorted(SOURCES.glob("*/*.cpp"))
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = [Path(scratch) / f"{source.parent.name}-{source.stem}.o" for source in sources]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(
                pool.map(
                    lambda pair: _run([compiler, *flags, "-c", str(pair[0]), "-o", str(pair[1])]),
                    zip(sources, objects, strict=True),
                )
            )
        made = Path(scratch) / LIBRARY
        _run([compiler, "-shared", "-pthread", *map(str, objects), "-o", str(made)])
        made.rename(library)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_BUILD_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]} does not work: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-4000:]}")
    return done
