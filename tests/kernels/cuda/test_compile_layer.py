"""Finding CUDA's headers, reading a kernel with its includes, compiling by NVRTC."""

import struct
from pathlib import Path

import pytest

from kernels.cuda import headers
from kernels.cuda.compiler import CompilationFailed, Resources, compile_kernels, parse_log
from kernels.cuda.headers import HeadersMissing, headers_version, include_folders
from kernels.cuda.sources import read_source
from kernels.rms_norm import cuda as rms_norm

ARCHES = ("sm_80", "sm_89", "sm_90", "sm_100")

PLAIN = """
namespace tokenbus {
template <class T> __global__ void copy(T* out, const T* in) { out[threadIdx.x] = in[threadIdx.x]; }
}
"""

# A thread of a block of 1024 has 64 registers, and here 96 values alive, which may not be read a second time.
SPILLS = """
__global__ void __launch_bounds__(1024) spills(float* out, const volatile float* in) {
  float values[96];
#pragma unroll
  for (int i = 0; i < 96; i++) values[i] = in[i * 1024 + threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 96; i++) out[i * 1024 + threadIdx.x] = values[i] * values[(i * 37 + 11) % 96];
}
"""

CALLS_WHAT_HAS_A_STACK = """
__device__ __noinline__ float pick(const float* in, int which) {
  float values[32];
#pragma unroll
  for (int i = 0; i < 32; i++) values[i] = in[i];
  return values[which & 31];
}
__global__ void calls(float* out, const float* in) { out[threadIdx.x] = pick(in, threadIdx.x); }
__global__ void plain(float* out) { out[threadIdx.x] = 1; }
"""

# Of ptxas 13.5: what a newer one writes for a newer architecture has no constant memory in it, and the parts stand in
# this order with or without shared memory.
LOG_OF_SM_80 = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5callsPf' for 'sm_80'
ptxas info    : Function properties for _Z5callsPf
ptxas         .     160 bytes stack frame, 8 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 56 registers, used 1 barriers, 160 bytes cumulative stack size, 256 bytes smem, 368 bytes cmem[0]
ptxas info    : Compile time = 11.952 ms
ptxas info    : Function properties for _Z6helperf
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
ptxas info    : Compiling entry function '_Z5plainPf' for 'sm_80'
ptxas info    : Function properties for _Z5plainPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers, 360 bytes cmem[0]
ptxas info    : Compile time = 0.844 ms
"""
LOG_OF_SM_120 = """ptxas warning : Value of threads per SM for entry _Z5callsPf is out of range
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Z5callsPf' for 'sm_120'
ptxas info    : Function properties for _Z5callsPf
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 43 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 12.718 ms
"""


def with_headers(folder: Path, version: str = "13020") -> Path:
    """A toolkit of the fewest files."""
    include = folder / "include"
    include.mkdir(parents=True)
    (include / "crt").mkdir()
    for name in ("cuda_bf16.h", "crt/host_defines.h"):
        (include / name).touch()
    (include / "cuda.h").write_text(f"#define OTHER 1\n#define CUDA_VERSION {version}\n")
    return folder


@pytest.fixture
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without CUDA. Returns where a toolkit is installed by default."""
    monkeypatch.setattr(headers, "_wheel_folders", lambda: [tmp_path / "packages" / "nvidia" / "cu13"])
    monkeypatch.setattr(headers, "_DEFAULT_TOOLKIT", tmp_path / "default")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "default"


# ---- headers --------------------------------------------------------------------------------------------------------


def test_the_wheels_headers_are_found_with_cccl_beside_them() -> None:
    folders = include_folders()
    assert (folders[0] / "cuda_fp8.h").is_file()
    assert [folder.name for folder in folders[1:]] == ["cccl"]
    assert int(headers_version()) >= 13000


@pytest.mark.parametrize("name", ["CUDA_HOME", "CUDA_PATH"])
def test_a_toolkit_is_named_by_the_environment(
    name: str, nothing_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_headers(nothing_installed)
    monkeypatch.setenv(name, str(with_headers(tmp_path / "named", "12080")))
    assert include_folders() == [tmp_path / "named" / "include"]
    assert headers_version() == "12080"


def test_without_wheels_or_a_named_toolkit_the_usual_folder_is_taken(nothing_installed: Path) -> None:
    with_headers(nothing_installed)
    assert include_folders() == [nothing_installed / "include"]


@pytest.mark.parametrize("missing", ["cuda_bf16.h", "crt/host_defines.h"])
def test_a_folder_with_half_of_the_headers_is_passed_over(
    missing: str, nothing_installed: Path, tmp_path: Path
) -> None:
    """Since CUDA 13 they are two wheels: where torch brought one, the other may not be there."""
    with_headers(nothing_installed)
    (with_headers(tmp_path / "packages" / "nvidia" / "cu13") / "include" / missing).unlink()
    assert include_folders() == [nothing_installed / "include"]


def test_without_headers_the_message_names_every_place(
    nothing_installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "empty"))
    with pytest.raises(HeadersMissing) as caught:
        include_folders()
    for folder in (tmp_path / "packages/nvidia/cu13", tmp_path / "empty", nothing_installed):
        assert str(folder / "include") in str(caught.value)
    assert "tokenbus[cuda]" in str(caught.value)


# ---- sources --------------------------------------------------------------------------------------------------------


def test_a_source_is_read_with_all_its_headers_each_once(tmp_path: Path) -> None:
    files = {
        "kernel.cu": '#include "a.cuh"\n  #  include "b.cuh"\n#include <cuda_bf16.h>\n// #include "never.cuh"\n',
        "a.cuh": '#pragma once\n#include "deep/c.cuh"\n',
        "b.cuh": '#pragma once\n#include "deep/c.cuh"\n#include "a.cuh"\n',
        "deep/c.cuh": '#include "b.cuh"\n',
    }
    (tmp_path / "deep").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert read_source(tmp_path / "kernel.cu", tmp_path) == files
    assert next(iter(read_source(tmp_path / "kernel.cu", tmp_path))) == "kernel.cu"


def test_a_missing_include_is_named_with_who_wants_it(tmp_path: Path) -> None:
    (tmp_path / "kernel.cu").write_text('#include "a.cuh"\n')
    (tmp_path / "a.cuh").write_text('#include "lost.cuh"\n')
    with pytest.raises(FileNotFoundError, match=r"a\.cuh includes lost\.cuh"):
        read_source(tmp_path / "kernel.cu", tmp_path)


def test_a_kernel_of_ours_is_read_to_the_last_header() -> None:
    assert set(read_source(rms_norm.SOURCE)) == {"kernel.cu", "kernels/cuda/numbers.cuh", "kernels/cuda/ptx.cuh"}


# ---- compiler -------------------------------------------------------------------------------------------------------


def source_of(folder: Path, text: str) -> Path:
    source = folder / "kernel.cu"
    source.write_text(text)
    return source


@pytest.mark.parametrize("arch", ARCHES)
def test_a_kernel_compiles_to_a_whole_cubin(arch: str, tmp_path: Path) -> None:
    instances = ["tokenbus::copy<float>", "tokenbus::copy<unsigned char>"]
    compiled = compile_kernels(source_of(tmp_path, PLAIN), instances, arch)
    assert compiled.symbols == {
        instances[0]: "_ZN8tokenbus4copyIfEEvPT_PKS1_",
        instances[1]: "_ZN8tokenbus4copyIhEEvPT_PKS1_",
    }
    assert end_of_elf(compiled.cubin) == len(compiled.cubin)
    for used in compiled.resources.values():
        assert 4 <= used.registers <= 32
        assert (used.stack, used.spilled, used.shared) == (0, 0, 0)


def end_of_elf(cubin: bytes) -> int:
    """Where its last table ends: a cubin that lacks a byte is shorter."""
    assert cubin.startswith(b"\x7fELF")
    programs, sections = struct.unpack_from("<QQ", cubin, 32)
    program_bytes, num_programs, section_bytes, num_sections = struct.unpack_from("<4H", cubin, 54)
    return max(int(programs + program_bytes * num_programs), int(sections + section_bytes * num_sections))


def test_a_mistake_is_reported_with_the_compilers_words(tmp_path: Path) -> None:
    source = source_of(tmp_path, "__global__ void broken() { int x = y_is_not_there; }")
    with pytest.raises(CompilationFailed, match=r"kernel\.cu for sm_90: kernel\.cu\(1\): error: .*y_is_not_there"):
        compile_kernels(source, ["broken"], "sm_90")


@pytest.mark.parametrize(
    ("instance", "arch", "said"),
    [("tokenbus::lost<float>", "sm_90", "no member"), ("tokenbus::copy<float>", "sm_1", "architecture")],
)
def test_what_cannot_be_compiled_for_is_reported_too(instance: str, arch: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(CompilationFailed, match=said):
        compile_kernels(source_of(tmp_path, PLAIN), [instance], arch)


@pytest.mark.parametrize("arch", ARCHES)
def test_spills_are_reported(arch: str, tmp_path: Path) -> None:
    used = compile_kernels(source_of(tmp_path, SPILLS), ["spills"], arch).resources["spills"]
    assert used.registers == 64
    assert used.spilled > 0
    assert used.stack > 0


def test_the_stack_of_a_function_that_is_not_inlined_is_its_callers(tmp_path: Path) -> None:
    source = source_of(tmp_path, CALLS_WHAT_HAS_A_STACK)
    resources = compile_kernels(source, ["plain", "calls"], "sm_90").resources
    assert resources["calls"].stack >= 128
    assert resources["plain"].stack == 0


def test_the_log_is_read_with_and_without_constant_memory() -> None:
    assert parse_log(LOG_OF_SM_80) == {
        "_Z5callsPf": Resources(registers=56, stack=176, spilled=28, shared=256),
        "_Z5plainPf": Resources(registers=8, stack=0, spilled=0, shared=0),
    }
    assert parse_log(LOG_OF_SM_120) == {"_Z5callsPf": Resources(registers=43, stack=0, spilled=0, shared=256)}


def test_a_log_that_cannot_be_read_is_an_error() -> None:
    with pytest.raises(CompilationFailed, match="nothing that can be read"):
        parse_log("ptxas info    : Compiling entry function '_Z1k' for 'sm_90'\nptxas info    : done\n")
