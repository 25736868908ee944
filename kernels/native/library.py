"""The C++ library, loaded at the highest level that the processor has."""

import ctypes
from functools import cache
from pathlib import Path

from kernels.native.build import BuildError, library_file
from kernels.native.isa import Level, cpu_flags, levels_of

_POINTER = ctypes.c_void_p
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "tokenbus_team_new": (_POINTER, (ctypes.c_int,)),
    "tokenbus_team_delete": (None, (_POINTER,)),
    "tokenbus_engine_new": (_POINTER, (_POINTER, ctypes.c_int)),
    "tokenbus_engine_delete": (None, (_POINTER,)),
    "tokenbus_engine_step": (None, (_POINTER, _POINTER)),
    "tokenbus_engine_team": (_POINTER, (_POINTER,)),
}


@cache
def load_library(level: Level | None = None) -> ctypes.CDLL:
    """The library for a level, the processor's highest one by default; built first where it is not there yet.

    Its functions release the GIL. Raises BuildError where there is none to be had.
    """
    levels = levels_of(cpu_flags())
    if not levels:
        raise BuildError("the processor has no AVX2")
    library = _open(library_file(level or levels[-1]))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _open(file: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(file))
    except OSError as error:
        raise BuildError(f"cannot load {file}: {error}") from error
