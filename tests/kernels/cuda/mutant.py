"""A planted bug in a kernel: a copy of its file with a piece of text changed, and the checks that must not pass then.

A mutant that nothing catches shows that the tests would let such a bug through.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernels.cuda.module import KernelModule, LoadKernels
from kernels.cuda.sources import ROOT, read_source
from tests.kernels.emulator.build import Tree
from tests.kernels.emulator.guarded import load_guarded
from tests.kernels.emulator.module import SCHEDULES, EmulatedModule, EmulationError, Schedule
from tests.kernels.emulator.sanitized import Check

FLAGS = ("-O1",)  # they are built once each


@dataclass(frozen=True, slots=True)
class Mutant:
    """file: a kernel or a header, from the repository's root. old: stands there once. checks: of which one must fail.

    is_long_run: tried in the full test run alone.
    """

    file: str
    old: str
    new: str
    checks: tuple[Check, ...]
    is_long_run: bool = False

    def planted(self) -> str:
        """The file's text with the bug. Raises ValueError if `old` does not stand there once, any longer."""
        text = (ROOT / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.file} has {text.count(self.old)} times: {self.old}")
        return text.replace(self.old, self.new)


class PlantedLoader:
    """A LoadKernels of kernels with a bug, or with none: from copies of their files in a folder, where they are built.

    num_planted: how many files with the bug were loaded.
    """

    def __init__(self, folder: Path, schedule: Schedule, mutant: Mutant | None) -> None:
        self.num_planted = 0
        self._tree = Tree(folder, folder / "built")
        self._schedule = schedule
        self._mutant = mutant

    def __call__(self, source: Path, instances: Sequence[str]) -> KernelModule:
        own_name = str(source.relative_to(ROOT))
        texts = {own_name if name == source.name else name: text for name, text in read_source(source).items()}
        if self._mutant is not None and self._mutant.file in texts:
            texts[self._mutant.file] = self._mutant.planted()
            self.num_planted += 1
        for name, text in texts.items():
            copy = self._tree.root / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
        return EmulatedModule(self._tree.root / own_name, instances, self._schedule, FLAGS, self._tree)


def run(checks: Sequence[Check], folder: Path, mutant: Mutant | None) -> str:
    """How the bug was caught, in whichever schedule; nothing if it was not. folder: for its files."""
    for place, schedule in enumerate(SCHEDULES):
        loader = PlantedLoader(folder, schedule, mutant)
        load: LoadKernels = load_guarded(loader, is_at_end=place % 2 == 0)
        for check in checks:
            try:
                check(load)
            except (AssertionError, EmulationError) as error:
                return f"{check.__name__} in {schedule}: {str(error).strip()}"
        if mutant is not None and not loader.num_planted:
            raise ValueError(f"no check loads {mutant.file}")
    return ""
