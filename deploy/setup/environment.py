"""Install the pinned dependencies and this project into the running Python's environment, or do nothing.

    python deploy/setup/environment.py run     what the services need
    python deploy/setup/environment.py dev     also what tests and checks need

Uses the standard library only, since it runs before anything is installed. A stamp file in the environment says for
which pyproject.toml, constraints.txt and Python it was made, so that the second call takes a blink.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

LEVELS = ("run", "dev")
STAMP = "tokenbus-environment"


def main(argv: list[str], root: Path, prefix: Path) -> int:
    """The exit status; root is the checkout, prefix the environment."""
    if len(argv) != 1 or argv[0] not in LEVELS:
        sys.stderr.write(f"usage: environment.py {'|'.join(LEVELS)}\n")
        return 2
    level, stamp, wanted = argv[0], prefix / STAMP, fingerprint(root)
    if is_done(stamp, wanted, level):
        return 0
    stamp.unlink(missing_ok=True)
    sys.stdout.write(f"Installing the {level} dependencies into {prefix.name} (once; the largest is torch)\n")
    sys.stdout.flush()
    status = subprocess.run(install_command(level), cwd=root, check=False).returncode
    if status == 0:
        stamp.write_text(f"{wanted} {level}\n", encoding="utf-8")
    else:
        sys.stderr.write("pip could not install the dependencies; its reason stands above\n")
    return status


def install_command(level: str) -> list[str]:
    """pip's command line for a level, run in the checkout."""
    target = "." if level == "run" else f".[{level}]"
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check"]
    return [*pip, "-c", "constraints.txt", "-e", target]


def fingerprint(root: Path) -> str:
    """A hash of everything that decides what must be installed."""
    digest = hashlib.sha256(f"{sys.version} {root}".encode())
    for name in ("pyproject.toml", "constraints.txt"):
        digest.update((root / name).read_bytes())
    return digest.hexdigest()


def is_done(stamp: Path, wanted: str, level: str) -> bool:
    """Whether the stamp says that this level, or a higher one, is installed."""
    if not stamp.is_file():
        return False
    found, _, found_level = stamp.read_text(encoding="utf-8").strip().partition(" ")
    return found == wanted and found_level in LEVELS and LEVELS.index(found_level) >= LEVELS.index(level)


if __name__ == "__main__":
    try:
        raise SystemExit(main(sys.argv[1:], Path(__file__).resolve().parents[2], Path(sys.prefix)))
    except KeyboardInterrupt:
        raise SystemExit(130) from None
