"""What a check has found."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Compilation:
    """Of instances of an operation's kernels. registers: the most that one takes of a thread's; problem: None if all is
    well."""

    operation: str
    kernel: str
    num_instances: int
    registers: int | None
    max_registers: int
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of a case. error: as a share of what is allowed. The rest on a device alone: time_us, gb_per_s, share_of_copy,
    and tflop_per_s where something is multiplied."""

    operation: str
    what: str
    error: float | None = None
    time_us: float | None = None
    gb_per_s: float | None = None
    share_of_copy: float | None = None
    problem: str | None = None
    tflop_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """where: the device's name, or the emulator. arch: what was compiled for. not_compared: operations without a case.
    notes: what a reader should know of how this was found."""

    where: str
    arch: str
    compilations: list[Compilation] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    copy_gb_per_s: float | None = None

    @property
    def is_good(self) -> bool:
        """Nothing failed, and something was compared."""
        problems = [each.problem for each in self.compilations] + [each.problem for each in self.comparisons]
        return bool(self.comparisons) and all(problem is None for problem in problems)
