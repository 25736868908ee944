"""The C++ library, loaded at the highest level that the processor has."""

import ctypes
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.native.build import AroundBuild, BuildError, library_file
from kernels.native.isa import Level, cpu_flags, levels_of

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "tokenbus_team_new": (_POINTER, (_INT,)),
    "tokenbus_team_delete": (None, (_POINTER,)),
    "tokenbus_engine_new": (_POINTER, (_POINTER, _INT)),
    "tokenbus_engine_delete": (None, (_POINTER,)),
    "tokenbus_engine_step": (None, (_POINTER, _POINTER)),
    "tokenbus_engine_products": (None, (_POINTER, _INT, _POINTER)),
    "tokenbus_engine_attention": (None, (_POINTER, _POINTER)),
    "tokenbus_engine_team": (_POINTER, (_POINTER,)),
    "tokenbus_sample": (None, (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER, _INT)),
    "tokenbus_attention_plan_new": (_POINTER, ()),
    "tokenbus_attention_plan_delete": (None, (_POINTER,)),
    "tokenbus_attention_plan_make": (None, (_POINTER, _POINTER, _POINTER, _INT)),
    "tokenbus_attention_plan_num_tasks": (_INT, (_POINTER,)),
    "tokenbus_paged_attention": (None, (_POINTER, _POINTER, _POINTER, _INT)),
    "tokenbus_linear": (None, (_POINTER, _POINTER, _INT, _POINTER, _INT, _POINTER)),
    "tokenbus_quantize": (None, (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER)),
    "tokenbus_embed": (None, (_POINTER, _POINTER, _INT, _POINTER)),
}


@dataclass(frozen=True, slots=True)
class Library:
    """functions: they release the GIL while they run."""

    level: Level
    functions: ctypes.CDLL


@cache
def load_library(
    level: Level | None = None, defines: tuple[str, ...] = (), around_build: AroundBuild = nullcontext
) -> Library:
    """The library for a level, the processor's highest one by default; built first where it is not there yet.

    defines, around_build: see library_file. Raises BuildError where there is none to be had.
    """
    levels = levels_of(cpu_flags())
    if not levels:
        raise BuildError("the processor has no AVX2")
    level = level or levels[-1]
    if level not in levels:
        raise BuildError(f"the processor has no {level}, only {', '.join(levels)}")
    functions = _open(library_file(level, defines=defines, around_build=around_build))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(functions, name)
        function.restype, function.argtypes = result, arguments
    return Library(level, functions)


def _open(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise BuildError(f"cannot load {file}: {error}") from error
