"""Freezes a release: `python -m tests.wire.freeze 0.2 [--commit COMMIT]`, at the release itself without --commit.

Writes tests/wire/release_<release>/ with
    messages.json   bytes and meaning of every message, of a log, and of the snapshot of that log
    schema.py       the release's structs, for reading today's messages as that release does
both made by the release's own code.
"""

import argparse
import subprocess
import sys
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path

from tests.wire.generate import MODULES
from tests.wire.schema_source import schema_source

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def release_folder(release: str) -> Path:
    """Where a release is frozen."""
    return HERE / f"release_{release.replace('.', '_')}"


def unpack_commit(commit: str, folder: Path) -> None:
    """The files of a commit. Raises CalledProcessError if this clone does not have it."""
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")


def freeze(release: str, code: Path) -> None:
    """Freeze what the code in this folder sends."""
    command = [sys.executable, str(HERE / "generate.py")]
    made = subprocess.run(command, cwd=code, check=True, stdout=subprocess.PIPE, env={"PYTHONPATH": str(code)}).stdout
    sources = [(code / f"{module.replace('.', '/')}.py").read_text("utf-8") for module in MODULES]
    folder = release_folder(release)
    folder.mkdir(exist_ok=True)
    (folder / "__init__.py").write_text("", "utf-8")
    (folder / "messages.json").write_bytes(made + b"\n")
    (folder / "schema.py").write_text(schema_source(release, sources), "utf-8")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.wire.freeze", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("release", help="such as 0.2")
    parser.add_argument("--commit", help="the commit of the release; without it, the files as they are")
    options = parser.parse_args()
    if options.commit is None:
        freeze(options.release, ROOT)
        return
    with tempfile.TemporaryDirectory() as folder:
        unpack_commit(options.commit, Path(folder))
        freeze(options.release, Path(folder))


if __name__ == "__main__":
    main()
