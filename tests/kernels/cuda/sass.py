"""The instructions of compiled kernels, by cuobjdump."""

import importlib.util
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

_FUNCTION = re.compile(r"^\s*Function : (\S+)$", re.MULTILINE)
# An address, perhaps the predicate that it depends on, and the instruction's name.
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def instructions_of(cubin: bytes, folder: Path) -> dict[str, Counter[str]]:
    """How often each instruction stands in each kernel, by mangled name; folder: for a file.

    Names are whole, e.g. LDG.E.128.CONSTANT; count() adds up those of one kind.
    """
    file = folder / "kernels.cubin"
    file.write_bytes(cubin)
    listing = subprocess.run([_cuobjdump(), "-sass", str(file)], check=True, capture_output=True, text=True).stdout
    parts = _FUNCTION.split(listing)[1:]
    return {name: Counter(_INSTRUCTION.findall(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)}


def count(instructions: Counter[str], kind: str) -> int:
    """kind: a name's beginning up to a point, e.g. HMMA or LDG.E.128."""
    return sum(number for name, number in instructions.items() if f"{name}.".startswith(f"{kind}."))


def _cuobjdump() -> str:
    """The wheel's, which knows the architectures of the wheel's NVRTC, else an installed toolkit's."""
    spec = importlib.util.find_spec("nvidia")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in Path(place).glob("cu*/bin/cuobjdump"):
            return str(file)
    return shutil.which("cuobjdump") or "cuobjdump"
