"""`python -m kernels check`, in the emulator, and with operations that go wrong in every way."""

import io
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from kernels.check import command, places
from kernels.check.case import Case, Size, Trial, error, mismatch
from kernels.check.cases import all_cases
from kernels.check.command import check, main
from kernels.check.outcome import Comparison, Compilation, Findings
from kernels.check.places import NoPlace, Place, current_device, emulator
from kernels.check.report import print_tables, to_json
from kernels.check.run import compare_all, compile_all
from kernels.cuda.catalogue import CATALOGUE, Kernels
from kernels.cuda.compiler import CompilationFailed, Compiled, Resources
from kernels.cuda.module import LoadKernels

CPU = torch.device("cpu")
KERNELS = Kernels("rope", Path("kernel.cu"), ["tokenbus::turn<float>", "two"], max_registers=40)


def nothing_to_load(source: Path, instances: object) -> object:
    raise AssertionError("no case here loads a kernel")


def case(compare: Callable[[], float], what: str = "a case", launch: Callable[[], None] = lambda: None) -> Case:
    return Case("rope", what, lambda load, device: Trial(launch, compare, num_bytes=4_000_000))


def compared(*cases: Case, measure: Callable[[Callable[[], None]], float] | None = None) -> list[Comparison]:
    load: LoadKernels = nothing_to_load  # type: ignore[assignment]
    return list(compare_all(cases, load, CPU, measure, copy_gb_per_s=4.0 if measure else None))


# ---- the whole ------------------------------------------------------------------------------------------------------


def test_a_dry_run_compiles_and_compares_in_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kv_blocks", "rope", "--dry-run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["ok"], found["where"], found["arch"]) == (True, "the emulator", "sm_90")
    assert [each["operation"] for each in found["compilations"]] == ["rope", "kv_blocks"]
    assert {each["operation"] for each in found["comparisons"]} == {"rope", "kv_blocks"}
    assert all(each["error"] <= 1 and each["time_us"] is None for each in found["comparisons"])
    assert "dry run" in found["notes"][0]


@pytest.mark.full
def test_every_operation_is_right_in_the_emulator(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run"]) == 0
    assert "all well" in capsys.readouterr().out


def test_without_a_device_it_says_so_and_takes_the_emulator(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert current_device() is None
    assert main(["rope", "--arch", "sm_80"]) == 0
    out = capsys.readouterr().out
    assert "compiled for sm_80, run on the emulator" in out
    assert "No CUDA device here" in out


def test_one_failure_ends_with_1_and_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = case(lambda: 1.5, "bfloat16 [3, 576]")
    monkeypatch.setattr(command, "all_cases", lambda size: [bad, case(lambda: 0.5)])
    assert main(["rope", "--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "bfloat16 [3, 576]" in out
    assert "differs from the reference" in out
    assert "FAILED" in out


@pytest.mark.parametrize("loader", ["nowhere.at_all:load", "json:load_emulated", "", "json"])
def test_without_an_emulator_nothing_is_checked_and_that_is_2(
    loader: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["--dry-run", "--loader", loader]) == 2
    assert "no emulator" in capsys.readouterr().err


def test_an_unknown_operation_is_2_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ropes", "--dry-run"]) == 2
    assert "no operation ropes; there are" in capsys.readouterr().err


def test_on_a_device_its_kernels_are_compiled_for_it_and_loaded_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[list[str]] = []
    emulated = emulator()

    def load(source: Path, instances: list[str]) -> object:
        loaded.append(list(instances))
        return emulated.load(source, instances)

    class Clock:
        def __init__(self, device: torch.device) -> None:
            assert device == CPU

        def copy_gb_per_s(self) -> float:
            return 1000.0

        def __call__(self, launch: Callable[[], None]) -> float:
            return 1e-6

    monkeypatch.setattr(command, "DeviceClock", Clock)
    place = Place("a device", load, CPU, Size.SMALL, "sm_89")  # type: ignore[arg-type]
    findings = check(place, "sm_90", ["rope"])
    assert (findings.where, findings.arch, findings.copy_gb_per_s) == ("a device", "sm_89", 1000.0)
    assert loaded[0] == [
        instance for kernels in CATALOGUE if kernels.operation == "rope" for instance in kernels.instances
    ]
    assert all(each.time_us == pytest.approx(1.0) for each in findings.comparisons)
    assert findings.is_good


@pytest.mark.parametrize("compiles_all", [False, True])
def test_kernels_of_rare_shapes_are_compiled_when_asked(compiles_all: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, rare = replace(KERNELS, further=["three"]), replace(KERNELS, instances=[], further=["four"])
    compiled: list[list[str]] = []

    def compile_kernels(kernels: Kernels, arch: str, place: Place) -> Compiled:
        compiled.append(list(kernels.instances))
        return Compiled(b"", {}, {"one": Resources(20, 0, 0, 0)})

    monkeypatch.setattr(command, "CATALOGUE", (usual, rare))
    monkeypatch.setattr(command, "all_cases", lambda size: [])
    monkeypatch.setattr(command, "_compile", compile_kernels)
    check(emulator(), None, [], compiles_all=compiles_all)
    assert compiled == ([[*KERNELS.instances, "three"], ["four"]] if compiles_all else [list(KERNELS.instances)])


def test_a_device_without_cupy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setitem(__import__("sys").modules, "kernels.cuda.device_module", None)
    with pytest.raises(NoPlace, match="no CuPy"):
        places.current_device()


# ---- comparing ------------------------------------------------------------------------------------------------------


def test_a_case_that_breaks_does_not_stop_the_others() -> None:
    def breaks() -> None:
        raise MemoryError("no memory")

    broken, good = compared(case(lambda: 0.0, launch=breaks), case(lambda: 0.25))
    assert broken.problem == "MemoryError: no memory"
    assert (good.problem, good.error) == (None, 0.25)


@pytest.mark.parametrize(("share", "is_good"), [(1.0, True), (1.01, False), (math.inf, False), (math.nan, False)])
def test_more_than_the_allowed_error_is_a_failure(share: float, is_good: bool) -> None:
    (found,) = compared(case(lambda: share))
    assert (found.problem is None) == is_good


def test_rates_are_of_the_fewest_bytes_and_of_a_copy() -> None:
    (found,) = compared(case(lambda: 0.5), measure=lambda launch: 2e-3)
    assert (found.time_us, found.gb_per_s, found.share_of_copy) == (2000.0, 2.0, 0.5)
    assert found.tflop_per_s is None


def test_what_multiplies_is_told_by_its_operations_too() -> None:
    product = Case("rope", "", lambda load, device: Trial(lambda: None, lambda: 0.5, 1, num_operations=3 * 10**9))
    (found,) = compared(product, measure=lambda launch: 1e-3)
    assert found.tflop_per_s == pytest.approx(3.0)


def test_what_is_wrong_is_not_timed() -> None:
    (found,) = compared(case(lambda: 2.0), measure=nothing_to_load)  # type: ignore[arg-type]
    assert found.time_us is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_one_rounding_is_allowed_and_three_units_are_not(dtype: torch.dtype) -> None:
    exact = np.linspace(-3, 3, 1001, dtype=np.float32)
    rounded = torch.from_numpy(exact).to(dtype)
    assert error(rounded, exact) <= 0.51
    off = rounded.view(torch.int16) + 3
    assert error(off.view(dtype), exact) > 1


@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_what_is_no_number_is_beyond_all_bounds(wrong: float) -> None:
    expected = np.ones(3, dtype=np.float32)
    assert error(torch.tensor([1.0, wrong, 1.0]), expected) == math.inf
    expected[1] = wrong
    assert error(torch.ones(3), expected) == math.inf


def test_bytes_are_equal_or_not() -> None:
    same = torch.arange(4, dtype=torch.uint8)
    assert mismatch(same, same.numpy()) == 0
    assert mismatch(same, same.numpy()[::-1]) == math.inf


# ---- compiling ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("registers", "spilled", "problem"),
    [(40, 0, None), (41, 0, "41 registers a thread"), (30, 8, "8 bytes of registers are spilled")],
)
def test_each_kernel_is_held_to_its_registers(registers: int, spilled: int, problem: str | None) -> None:
    compiled = Compiled(b"", {}, {"one": Resources(20, 0, 0, 0), "two": Resources(registers, 0, spilled, 0)})
    assert list(compile_all([KERNELS], lambda kernels: compiled)) == [
        Compilation("rope", "turn", 2, registers, 40, problem)
    ]


def test_what_does_not_compile_does_not_stop_the_others() -> None:
    compiled = Compiled(b"", {}, {"one": Resources(20, 0, 0, 0)})

    def compile_kernels(kernels: Kernels) -> Compiled:
        if kernels.operation == "rope":
            raise CompilationFailed("kernel.cu(1): error")
        return compiled

    broken, good = compile_all([KERNELS, replace(KERNELS, operation="other")], compile_kernels)
    assert broken.problem == "CompilationFailed: kernel.cu(1): error"
    assert good.problem is None


# ---- telling --------------------------------------------------------------------------------------------------------

FINDINGS = Findings(
    where="a device",
    arch="sm_90",
    compilations=[
        Compilation("rope", "turn", 2, 32, 40),
        Compilation("rope", "turn", 2, None, 40, "kernel.cu(1): error: [x]"),
    ],
    comparisons=[
        Comparison("rope", "float16 [4, 5]", 0.5, 12.34, 2000.4, 0.5, tflop_per_s=3.21),
        Comparison("rope", "float16 [5, 5]", math.inf, problem="differs"),
        Comparison("rope", "float16 [6, 5]", problem="MemoryError: none"),
    ],
    not_compared=["sampling"],
    notes=["a note [of the reader]"],
    copy_gb_per_s=4000.0,
)


def test_the_tables_tell_all() -> None:
    file = io.StringIO()
    print_tables(FINDINGS, Console(file=file, width=200))
    text = file.getvalue()
    told = (
        "a note [of the reader]",
        "error: [x]",
        "float16 [4, 5]",
        "50%",
        "12.3",
        "2000",
        "inf%",
        "MemoryError: none",
    )
    for each in (*told, "a plain copy: 4000 GB/s", "not compared: sampling", "FAILED"):
        assert each in text


def test_json_has_no_infinity_and_the_verdict() -> None:
    found = json.loads(to_json(FINDINGS))
    assert found["ok"] is False
    assert [each["error"] for each in found["comparisons"]] == [0.5, None, None]
    assert found["not_compared"] == ["sampling"]


def test_nothing_compared_is_not_good() -> None:
    assert not Findings(where="a device", arch="sm_90", compilations=[Compilation("rope", "turn", 2, 32, 40)]).is_good


def test_every_operation_of_the_catalogue_is_compared_and_no_name_is_used_twice() -> None:
    """An operation without a case has one line to add to kernels/check/cases.py."""
    for size in Size:
        cases = all_cases(size)
        assert {each.operation for each in cases} == {kernels.operation for kernels in CATALOGUE}
        assert len({(each.operation, each.what) for each in cases}) == len(cases)


class DoesNothing:
    """A KernelModule whose kernels are empty."""

    def launch(self, *arguments: object) -> None:
        pass


@pytest.mark.parametrize("one", all_cases(Size.SMALL), ids=lambda one: f"{one.operation} {one.what}")
def test_no_case_is_content_with_a_kernel_that_does_nothing(one: Case) -> None:
    (found,) = compare_all([one], lambda source, instances: DoesNothing(), CPU, None, None)  # type: ignore[arg-type, return-value]
    assert found.problem is not None
