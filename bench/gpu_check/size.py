"""How large what travels to the machine with a GPU is: the tree and the wheels beside it."""

import os
from dataclasses import dataclass
from pathlib import Path

WHEELS = ".gpu-wheels"
MOST_BYTES = 60_000_000
# Neither tracked nor taken along. As in .gitignore, which is not read: there may be no git on the other machine.
_LEFT_OUT = {
    *(".git", ".venv", ".gpu-site", WHEELS, "__pycache__", "build", "dist", ".hypothesis", ".import_linter_cache"),
    *(".mypy_cache", ".pytest_cache", ".ruff_cache"),
}


@dataclass(frozen=True, slots=True)
class Size:
    """In bytes."""

    tree: int
    wheels: int

    @property
    def is_small_enough(self) -> bool:
        """To travel."""
        return self.tree + self.wheels <= MOST_BYTES

    def told(self) -> str:
        """In MB of 1e6 bytes."""
        verdict = "within" if self.is_small_enough else "MORE THAN"
        return (
            f"tree {self.tree / 1e6:.1f} MB, wheels {self.wheels / 1e6:.1f} MB, together "
            f"{(self.tree + self.wheels) / 1e6:.1f} MB: {verdict} {MOST_BYTES / 1e6:.0f} MB"
        )


def tree_and_wheels(root: Path) -> Size:
    """Of this checkout."""
    tree = 0
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if name not in _LEFT_OUT and not name.endswith(".egg-info")]
        tree += sum(os.lstat(Path(folder, file)).st_size for file in files)
    wheels = sum(file.stat().st_size for file in (root / WHEELS).glob("*.whl"))
    return Size(tree, wheels)
