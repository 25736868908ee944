"""Building the C++ library where something is missing, broken or in the way; which level a processor has."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kernels.native import build, library
from kernels.native.build import BuildError, library_file
from kernels.native.isa import COMPILER_FLAGS, cpu_flags, levels_of
from tests.waiting import LIMIT_S

GOOD = '#include "kernels/one/one.h"\nextern "C" int answer() { return kAnswer; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of one small kernel in the place of ours."""
    kernels = tmp_path / "tree" / "kernels"
    (kernels / "one").mkdir(parents=True)
    (kernels / "one" / "one.h").write_text("constexpr int kAnswer = 42;\n")
    (kernels / "one" / "one.cpp").write_text(GOOD)
    monkeypatch.setattr(build, "SOURCES", kernels)
    return kernels


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler that writes a line into this file for each call, then does its work."""
    calls, compiler = tmp_path / "calls", tmp_path / "compiler"
    compiler.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec g++ "$@"\n')
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(compiler))
    calls.touch()
    return calls


def built(calls: Path) -> int:
    """How often something was compiled or linked."""
    return sum("-o" in line.split() for line in calls.read_text().splitlines())


# ---- building -------------------------------------------------------------------------------------------------------


def test_without_a_compiler_the_message_names_it(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=r"no C\+\+ compiler: g\+\+"):
        library_file("avx2", tmp_path / "cache")


def test_a_compiler_that_is_not_there_is_named(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "clang++"))
    with pytest.raises(BuildError, match="clang"):
        library_file("avx2", tmp_path / "cache")


def test_a_broken_source_fails_with_the_compilers_words_and_leaves_nothing(
    sources: Path, counted: Path, tmp_path: Path
) -> None:
    (sources / "one" / "one.cpp").write_text('extern "C" int answer() { return kUnheardOf; }\n')
    for _ in range(2):
        with pytest.raises(BuildError, match="kUnheardOf"):
            library_file("avx2", tmp_path / "cache")
    assert [file.name for file in (tmp_path / "cache").rglob("*") if file.is_file()] == ["lock"]
    (sources / "one" / "one.cpp").write_text(GOOD)
    assert library_file("avx2", tmp_path / "cache").exists()


def test_what_is_built_already_is_not_built_again(sources: Path, counted: Path, tmp_path: Path) -> None:
    first = library_file("avx2", tmp_path / "cache")
    assert built(counted) == 2  # one source, and the library
    assert library_file("avx2", tmp_path / "cache") == first
    assert built(counted) == 2


def test_who_asks_hears_of_a_build_and_of_nothing_else(sources: Path, counted: Path, tmp_path: Path) -> None:
    heard: list[str] = []

    @contextmanager
    def hear(library: Path) -> Iterator[None]:
        assert not library.exists()
        heard.append(f"begun {library}")
        yield
        heard.append("done" if library.exists() else "done without a library")

    (sources / "one" / "one.cpp").write_text("no C++")
    with pytest.raises(BuildError, match=r"one\.cpp"):
        library_file("avx2", tmp_path / "cache", around_build=hear)
    assert [words.split()[0] for words in heard] == ["begun"]
    (sources / "one" / "one.cpp").write_text(GOOD)
    library = library_file("avx2", tmp_path / "cache", around_build=hear)
    assert heard[1:] == [f"begun {library}", "done"]
    assert library_file("avx2", tmp_path / "cache", around_build=hear) == library
    assert len(heard) == 3


def test_a_changed_header_another_level_and_another_compiler_are_other_libraries(
    sources: Path, counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [library_file("avx2", tmp_path / "cache"), library_file("avx512", tmp_path / "cache")]
    (sources / "one" / "one.h").write_text("constexpr int kAnswer = 43;\n")
    files.append(library_file("avx2", tmp_path / "cache"))
    monkeypatch.delenv("CXX")
    files.append(library_file("avx2", tmp_path / "cache"))
    assert len(set(files)) == 4


def test_processes_that_start_at_once_build_once(sources: Path, counted: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from kernels.native import build;"
        "build.SOURCES = Path(sys.argv[1]); print(build.library_file('avx2', Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, str(sources), str(tmp_path / "cache")]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    processes = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    answers = {process.communicate(timeout=LIMIT_S)[0].strip() for process in processes}
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(answers) == 1
    assert Path(answers.pop()).exists()
    assert built(counted) == 2


def test_what_a_killed_build_left_is_in_nobodys_way(sources: Path, counted: Path, tmp_path: Path) -> None:
    folder = library_file("avx2", tmp_path / "cache").parent
    (folder / build.LIBRARY).unlink()
    (folder / "tmp_killed").mkdir()
    (folder / "tmp_killed" / "one-one.o").write_bytes(b"half of")
    assert library_file("avx2", tmp_path / "cache").exists()


@pytest.mark.parametrize("cache", ["file/cache", "/proc/cache"])
def test_a_cache_folder_that_cannot_be_made_is_named(sources: Path, counted: Path, tmp_path: Path, cache: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=f"cannot build in .*{cache}"):
        library_file("avx2", tmp_path / cache)


def test_a_cache_folder_that_takes_no_files_is_named(
    sources: Path, counted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_fingerprint", lambda compiler, flags: "1")
    (tmp_path / "avx2-1" / "lock").mkdir(parents=True)  # root may write into a read-only folder, but nobody into this
    with pytest.raises(BuildError, match="cannot build in"):
        library_file("avx2", tmp_path)


# ---- levels ---------------------------------------------------------------------------------------------------------

_AVX2 = "fpu sse2 ssse3 sse4_1 sse4_2 movbe popcnt avx f16c fma bmi1 avx2 bmi2 abm"
_SKYLAKE_X = f"{_AVX2} avx512f avx512dq avx512cd avx512bw avx512vl"
_ICE_LAKE = (
    f"{_SKYLAKE_X} avx512ifma avx512vbmi avx512_vbmi2 avx512_vnni avx512_bitalg avx512_vpopcntdq gfni vaes vpclmulqdq"
)
_ZEN_4 = f"{_ICE_LAKE} avx512_bf16"
PROCESSORS = {
    "Sandy Bridge": ("fpu sse2 ssse3 sse4_1 sse4_2 popcnt avx", []),
    "Haswell": (_AVX2, ["avx2"]),
    "Alder Lake": (f"{_AVX2} avx_vnni gfni vaes", ["avx2"]),
    "Zen 3": (f"{_AVX2} sse4a vaes vpclmulqdq clzero", ["avx2"]),
    "Skylake-X": (_SKYLAKE_X, ["avx2"]),
    "Cascade Lake": (f"{_SKYLAKE_X} avx512_vnni", ["avx2"]),
    "Cooper Lake": (f"{_SKYLAKE_X} avx512_vnni avx512_bf16", ["avx2"]),
    "Ice Lake": (_ICE_LAKE, ["avx2"]),
    "Zen 4": (_ZEN_4, ["avx2", "avx512"]),
    "Zen 5": (f"{_ZEN_4} avx_vnni avx512_vp2intersect", ["avx2", "avx512"]),
    "Sapphire Rapids": (
        f"{_ZEN_4} avx_vnni avx512_fp16 amx_bf16 amx_tile amx_int8",
        ["avx2", "avx512", "amx"],
    ),
    "AMX hidden in part by a hypervisor": (f"{_ZEN_4} amx_tile amx_int8", ["avx2", "avx512"]),
    "AMX without AVX512-BF16": (f"{_ICE_LAKE} amx_bf16 amx_tile amx_int8", ["avx2"]),
    "ARM": ("", []),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_levels_of_processors(name: str) -> None:
    flags, expected = PROCESSORS[name]
    assert levels_of(frozenset(flags.split())) == expected


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    text = "processor\t: 0\nmodel name\t: X: Y\nflags\t\t: fpu avx2\nbugs\t\t:\n\nprocessor\t: 1\nflags\t\t: other\n"
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_flags(tmp_path / "cpuinfo") == {"fpu", "avx2"}


def test_an_arm_processor_and_a_system_that_tells_nothing_have_no_flags(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nFeatures\t: fp asimd evtstrm aes\nCPU part\t: 0xd0c\n")
    assert cpu_flags(tmp_path / "cpuinfo") == frozenset()
    assert cpu_flags(tmp_path / "nothing") == frozenset()


def test_without_avx2_there_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset({"sse2"}))
    with pytest.raises(BuildError, match="no AVX2"):
        library.load_library.__wrapped__()


def test_a_level_that_the_processor_lacks_is_refused_with_those_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset(_AVX2.split()))
    with pytest.raises(BuildError, match="no amx, only avx2"):
        library.load_library.__wrapped__("amx")


def test_a_library_that_does_not_load_is_a_build_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "libbroken.so"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(library, "library_file", lambda level, **options: broken)
    monkeypatch.setattr(library, "cpu_flags", lambda: frozenset(_AVX2.split()))
    with pytest.raises(BuildError, match="cannot load"):
        library.load_library.__wrapped__()


@pytest.mark.parametrize("level", COMPILER_FLAGS)
def test_the_compiler_knows_every_level(level: str, sources: Path, counted: Path, tmp_path: Path) -> None:
    assert library_file(level, tmp_path / "cache").exists()


def test_a_user_without_a_home_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(BuildError, match="home directory"):
        library_file("avx2")
