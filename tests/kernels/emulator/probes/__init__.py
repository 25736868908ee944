"""Small kernels that look at the emulator itself."""

from collections.abc import Sequence
from pathlib import Path

from tests.kernels.emulator.module import SCHEDULES, EmulatedModule, Schedule

FOLDER = Path(__file__).parent
NAMES = sorted(file.stem for file in FOLDER.glob("*.cu"))

# What each file is built for, all tests of it together: a build takes longer than they do.
INSTANCES: dict[str, list[str]] = {
    "barriers": [
        "sum_of_those_left",
        "barrier_against_warp",
        "lanes_that_ended",
        "two_barriers",
        "two_collectives",
        "two_masks",
        "outside_its_mask",
    ],
    "conversions": [
        *(f"narrowed<{name}>" for name in ("__nv_bfloat16", "__half", "__nv_fp8_e4m3")),
        *(f"widened<{name}>" for name in ("__nv_bfloat16", "__half", "__nv_fp8_e4m3")),
        *(f"unpacked<{name}>" for name in ("float", "__nv_bfloat16", "__half", "__nv_fp8_e4m3")),
        *(f"two_packed<{name}>" for name in ("__nv_bfloat16", "__half")),
        "fast_mathematics",
    ],
    "copies": [
        "seen_of_a_copy",
        *(f"arrived<{pending}>" for pending in range(5)),
        "many_groups",
        "copy_at",
        "load_at",
        "traffic",
    ],
    "lanes": [
        *(f"shuffled<{value}, {kind}>" for value in ("int", "float", "double") for kind in range(4)),
        "votes",
        "sums_of_halves",
        "from_outside",
    ],
    "matrices": [
        *(f"loaded<{transposed}>" for transposed in ("false", "true")),
        *(
            f"{kernel}<{value}>"
            for kernel in ("product_of_fragments", "product")
            for value in ("__nv_bfloat16", "__half")
        ),
        "loads_of_rows",
        "load_matrix_at",
    ],
    "memory": [
        "reads_bytes",
        "writes_bytes",
        "reads_16_bytes",
        "reads_a_variable",
        "multiplies",
        "shifts",
        "reads_null",
    ],
    "races": [
        f"{kernel}<{is_right}>"
        for kernel in (
            "neighbours",
            "overwritten",
            "lanes",
            "overwritten_in_a_warp",
            "copied",
            "loaded_as_matrices",
            "global",
            "added",
            "some_end",
        )
        for is_right in ("true", "false")
    ],
    "shared_memory": ["as_found", "write_at", "two_variables"],
    "threads": ["built_ins", "turns_of_threads", "turns_around_a_shuffle", "turns_of_blocks", "atomics"],
}


def source(name: str) -> Path:
    """The file of this name."""
    return FOLDER / f"{name}.cu"


def instances(name: str) -> Sequence[str]:
    """Of this file's kernels."""
    return [f"tokenbus::{instance}" for instance in INSTANCES[name]]


def load(name: str, schedule: Schedule = SCHEDULES[0]) -> EmulatedModule:
    """This file's kernels in the emulator."""
    return EmulatedModule(source(name), instances(name), schedule)
