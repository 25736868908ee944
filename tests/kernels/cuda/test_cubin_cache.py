"""What was compiled once is not compiled again, unless anything that it depends on has changed."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from kernels.cuda import cubin_cache, sources
from kernels.cuda.compiler import Compiled, Resources
from kernels.cuda.cubin_cache import CubinCache, cache_key, default_folder

INSTANCE = "tokenbus::copy<float>"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel with a header, in a tree of its own."""
    (tmp_path / "tree").mkdir()
    monkeypatch.setattr(cubin_cache, "read_source", lambda file: sources.read_source(file, tmp_path / "tree"))
    (tmp_path / "tree" / "deep.cuh").write_text("// deep\n")
    (tmp_path / "tree" / "copy.cuh").write_text('#include "deep.cuh"\n')
    file = tmp_path / "tree" / "kernel.cu"
    file.write_text('#include "copy.cuh"\n')
    return file


class Compiler:
    """In NVRTC's place."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, source: Path, instances: list[str], arch: str) -> Compiled:
        self.calls += 1
        return Compiled(
            cubin=f"{arch} {self.calls}".encode() * 1000,
            symbols={instance: f"_Z{instance}" for instance in instances},
            resources={instance: Resources(32, 0, 0, 16) for instance in instances},
        )


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compiler]:
    compiler = Compiler()
    monkeypatch.setattr(cubin_cache, "compile_kernels", compiler)
    yield compiler


def test_a_hit_compiles_nothing(source: Path, compiler: Compiler, tmp_path: Path) -> None:
    first = CubinCache(tmp_path / "cache").get(source, [INSTANCE], "sm_90")
    assert CubinCache(tmp_path / "cache").get(source, [INSTANCE], "sm_90") == first
    assert compiler.calls == 1


def test_the_key_changes_with_all_that_a_cubin_depends_on(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(instances: tuple[str, ...] = (INSTANCE,), arch: str = "sm_90") -> str:
        return cache_key(source, instances, arch)

    keys = [key(), key(arch="sm_100"), key(("tokenbus::copy<int>",)), key((INSTANCE, INSTANCE))]
    for name in ("deep.cuh", "copy.cuh", "kernel.cu"):
        text = (source.parent / name).read_text()
        (source.parent / name).write_text(text + "// more\n")
        keys.append(key())
        (source.parent / name).write_text(text)
    with monkeypatch.context() as patched:
        patched.setattr(cubin_cache, "version", lambda: (99, 0))
        keys.append(key())
    with monkeypatch.context() as patched:
        patched.setattr(cubin_cache, "headers_version", lambda: "99000")
        keys.append(key())
    with monkeypatch.context() as patched:
        patched.setattr(cubin_cache, "options", lambda arch, includes: ["-O0", arch])
        keys.append(key())
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]


def test_text_that_moves_from_one_part_to_the_next_changes_the_key(source: Path) -> None:
    assert cache_key(source, ["ab", "c"], "sm_90") != cache_key(source, ["a", "bc"], "sm_90")


def test_the_key_does_not_depend_on_where_the_tree_lies(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = cache_key(source, [INSTANCE], "sm_90")
    moved = source.parent.rename(tmp_path / "moved")
    monkeypatch.setattr(cubin_cache, "read_source", lambda file: sources.read_source(file, moved))
    assert cache_key(moved / source.name, [INSTANCE], "sm_90") == before


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def with_a_bit_turned(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.mark.parametrize("damage", [truncated, with_a_bit_turned, lambda _: b"", lambda _: b"x" * 100])
def test_a_damaged_file_is_compiled_anew(damage: object, source: Path, compiler: Compiler, tmp_path: Path) -> None:
    assert callable(damage)
    cache = CubinCache(tmp_path / "cache")
    cache.get(source, [INSTANCE], "sm_90")
    (file,) = (tmp_path / "cache").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    anew = cache.get(source, [INSTANCE], "sm_90")
    assert compiler.calls == 2
    assert anew.cubin.startswith(b"sm_90 2")
    assert cache.get(source, [INSTANCE], "sm_90") == anew
    assert compiler.calls == 2


def test_many_writers_at_once_leave_one_whole_file(
    source: Path, compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_writers = 8
    together = Barrier(num_writers)

    def compile_together(source: Path, instances: list[str], arch: str) -> Compiled:
        together.wait()  # so that each has found nothing before any has written
        return compiler(source, instances, arch)

    monkeypatch.setattr(cubin_cache, "compile_kernels", compile_together)
    caches = [CubinCache(tmp_path / "cache") for _ in range(num_writers)]
    with ThreadPoolExecutor(num_writers) as pool:
        results = list(pool.map(lambda cache: cache.get(source, [INSTANCE], "sm_90"), caches))
    assert compiler.calls == num_writers
    assert len(list((tmp_path / "cache").iterdir())) == 1
    assert caches[0].get(source, [INSTANCE], "sm_90") in results


def test_where_nothing_can_be_kept_the_kernels_are_there_nevertheless(
    source: Path, compiler: Compiler, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    cache = CubinCache(tmp_path / "file" / "cache")
    assert cache.get(source, [INSTANCE], "sm_90").symbols == {INSTANCE: f"_Z{INSTANCE}"}


def test_the_folder_is_below_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "tokenbus" / "cubins"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder() == tmp_path / "home" / ".cache" / "tokenbus" / "cubins"
