"""Every kernel of the catalogue compiles for every architecture: no register spilled, no local memory, and no more
registers than its operation allows. Nothing here needs a device."""

from pathlib import Path

import pytest

from kernels.cuda.catalogue import ARCHES, CATALOGUE, Kernels
from kernels.cuda.compiler import compile_kernels
from kernels.cuda.cubin_cache import CubinCache
from kernels.cuda.sources import ROOT
from tests.kernels.cuda.sass import count, instructions_of

MAIN_ARCH = "sm_90"
OTHER_ARCHES = [arch for arch in ARCHES if arch != MAIN_ARCH]
USUAL = [kernels for kernels in CATALOGUE if kernels.instances]
FEW = ("rms_norm", "paged_attention")  # one that the compiler could spoil little of, and the one with most to spoil
LOCAL_MEMORY = ("LDL", "STL")

# The compiler puts an array that is read at a place it cannot know into local memory, and reports no spill.
INDEXED = """
__global__ void indexed(int* out, const int* in) {
  int values[64] = {};
  for (int i = 0; i < 64; i++) values[in[i] & 63] += i;
  for (int i = 0; i < 64; i++) out[i] = values[in[i] & 63];
}
"""


def names(kernels: Kernels) -> str:
    return f"{kernels.operation}-{[*kernels.instances, *kernels.further][0].removeprefix('tokenbus::')}"


@pytest.mark.parametrize("kernels", USUAL, ids=names)
def test_all_instances_hold_on_the_main_architecture(kernels: Kernels, tmp_path: Path) -> None:
    assert_holds(kernels, kernels.instances, MAIN_ARCH, tmp_path)


@pytest.mark.parametrize("arch", OTHER_ARCHES)
@pytest.mark.parametrize("kernels", [kernels for kernels in USUAL if kernels.operation in FEW], ids=names)
def test_one_instance_holds_on_the_other_architectures(kernels: Kernels, arch: str, tmp_path: Path) -> None:
    assert_holds(kernels, kernels.instances[:1], arch, tmp_path)


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize("arch", OTHER_ARCHES)
@pytest.mark.parametrize("kernels", USUAL, ids=names)
def test_all_instances_hold_on_the_other_architectures(kernels: Kernels, arch: str, tmp_path: Path) -> None:
    assert_holds(kernels, kernels.instances, arch, tmp_path)


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("kernels", [kernels for kernels in CATALOGUE if kernels.further], ids=names)
def test_further_instances_hold_on_all_architectures(kernels: Kernels, arch: str, tmp_path: Path) -> None:
    assert_holds(kernels, kernels.further, arch, tmp_path)


def assert_holds(kernels: Kernels, instances: object, arch: str, folder: Path) -> None:
    assert isinstance(instances, list | tuple)
    compiled = CubinCache().get(kernels.source, instances, arch)
    instructions = instructions_of(compiled.cubin, folder)
    faults = []
    for instance in instances:
        used, of_kernel = compiled.resources[instance], instructions[compiled.symbols[instance]]
        if used.spilled or used.stack:
            faults.append(f"{instance}: {used.spilled} bytes spilled, a stack of {used.stack}")
        if used.registers > kernels.max_registers:
            faults.append(f"{instance}: {used.registers} registers, allowed are {kernels.max_registers}")
        faults += [f"{instance}: {number} {kind}" for kind in LOCAL_MEMORY if (number := count(of_kernel, kind))]
        if not count(of_kernel, "EXIT"):
            faults.append(f"{instance}: its instructions could not be read")
    assert not faults


@pytest.mark.parametrize("arch", ARCHES)
def test_local_memory_that_is_no_spill_is_seen(arch: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text(INDEXED)
    compiled = compile_kernels(source, ["indexed"], arch)
    assert compiled.resources["indexed"].spilled == 0
    assert compiled.resources["indexed"].stack >= 256
    of_kernel = instructions_of(compiled.cubin, tmp_path)[compiled.symbols["indexed"]]
    assert all(count(of_kernel, kind) for kind in LOCAL_MEMORY)


@pytest.mark.parametrize("arch", ARCHES)
def test_matrix_products_and_copies_are_counted_by_name(arch: str, tmp_path: Path) -> None:
    source = tmp_path / "kernel.cu"
    source.write_text("""#include "kernels/cuda/ptx.cuh"
__global__ void multiply(float* out, const uint32_t* in) {
  SHARED_MEMORY(uint32_t, tile);
  tokenbus::cp_async_16(tile + 4 * threadIdx.x, in + 4 * threadIdx.x, true);
  tokenbus::cp_async_commit();
  tokenbus::cp_async_wait<0>();
  __syncthreads();
  uint32_t a[4];
  tokenbus::ldmatrix_4(a, tile + 4 * threadIdx.x);
  float sums[4] = {};
  tokenbus::mma_16x8x16<__nv_bfloat16>(sums, a, a[0], a[1]);
  tokenbus::mma_16x8x16<__half>(sums, a, a[2], a[3]);
  for (int i = 0; i < 4; i++) out[4 * threadIdx.x + i] = sums[i];
}
""")
    compiled = compile_kernels(source, ["multiply"], arch)
    of_kernel = instructions_of(compiled.cubin, tmp_path)[compiled.symbols["multiply"]]
    found = {kind: count(of_kernel, kind) for kind in ("HMMA", "HMMA.16816.F32.BF16", "LDSM", "LDGSTS", "LDL", "HM")}
    assert found == {"HMMA": 2, "HMMA.16816.F32.BF16": 1, "LDSM": 1, "LDGSTS": 1, "LDL": 0, "HM": 0}


def test_attention_multiplies_on_tensor_cores_where_it_says_so_and_copies_past_the_registers(tmp_path: Path) -> None:
    """Tensor cores get their operands by LDSM from tiles that LDGSTS copies; the plain kernel has none of all this."""
    found = {}
    for kernels in USUAL:
        if kernels.operation == "paged_attention":
            compiled = CubinCache().get(kernels.source, kernels.instances, MAIN_ARCH)
            instructions = instructions_of(compiled.cubin, tmp_path)
            for instance in kernels.instances:
                of_kernel = instructions[compiled.symbols[instance]]
                kinds = {kind for kind in ("HMMA", "LDSM", "LDGSTS") if count(of_kernel, kind)}
                found[instance.split("::")[1].split("<")[0], "fp8" in instance] = kinds
    tensor = {"HMMA", "LDSM", "LDGSTS"}
    assert {kind: kinds for kind, kinds in found.items() if kind[0].endswith("_mma")} == {
        (name, is_fp8): tensor for name in ("decode_mma", "prefill_mma") for is_fp8 in (False, True)
    }
    assert all("HMMA" not in kinds for (name, _), kinds in found.items() if not name.endswith("_mma"))


def test_every_operation_with_a_kernel_stands_in_the_catalogue() -> None:
    """An operation that does not has one line to add to kernels/cuda/catalogue.py."""
    listed = {kernels.source for kernels in CATALOGUE}
    assert set(ROOT.glob("kernels/*/kernel.cu")) <= listed
