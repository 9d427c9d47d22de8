"""The library of compiled kernels: built once, cached, and absent with a reason where there is no compiler."""

from __future__ import annotations

import ctypes
import multiprocessing
import stat
from pathlib import Path

import pytest
import torch

from fedloom.nets.kernels.native import compiler, library
from fedloom.nets.kernels.native.compiler import Unavailable, find_compiler
from fedloom.nets.kernels.native.library import load

SOURCE = 'extern "C" __attribute__((visibility("default"))) int answer() { return 42; }\n'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small source, a cache of its own, and a compiler that notes every call that makes a library."""
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "one.cpp").write_text(SOURCE)
    script = tmp_path / "compiler"
    real = find_compiler().command[0]
    script.write_text(f'#!/bin/sh\ncase "$*" in *-shared*) echo made >> {tmp_path}/calls;; esac\nexec {real} "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("CXX", str(script))
    return tmp_path


def calls(sources: Path) -> int:
    return len((sources / "calls").read_text().splitlines())


def stored() -> list[Path]:
    return sorted(library.folder().glob("*.so"))


def test_a_library_is_built_once_and_again_when_a_source_changes(sources: Path) -> None:
    assert load(sources).answer() == load(sources).answer() == 42
    assert (calls(sources), len(stored())) == (1, 1)
    (sources / "one.cpp").write_text(SOURCE.replace("42", "43"))
    assert load(sources).answer() == 43
    assert (calls(sources), len(stored())) == (2, 2)


def test_a_damaged_library_is_built_again(sources: Path) -> None:
    load(sources)
    (path,) = stored()
    content = path.read_bytes()
    path.unlink()  # not in place: the file is mapped
    path.write_bytes(content[:1000])
    assert load(sources).answer() == 42
    assert calls(sources) == 2
    (again,) = stored()
    assert again.read_bytes()[:1000] == content[:1000]
    ctypes.CDLL(str(again))


def test_processes_that_need_it_at_the_same_time_build_it_once(sources: Path) -> None:
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_answer, [sources] * 3, chunksize=1) == [42] * 3
    assert calls(sources) == 1


def _answer(sources: Path) -> int:
    return int(load(sources).answer())


def test_a_missing_compiler_is_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nonexistent/c++")
    with pytest.raises(Unavailable, match=r"\$CXX, /nonexistent/c\+\+, is no compiler that can be run"):
        load(tmp_path)
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="no C\\+\\+ compiler was found; install g\\+\\+"):
        load(tmp_path)


def test_a_source_that_does_not_compile_is_a_reason(sources: Path) -> None:
    (sources / "one.cpp").write_text("no\n")
    with pytest.raises(Unavailable, match=r"failed to compile them \(.*one\.cpp"):
        load(sources)
    assert not stored()
    assert not list(library.folder().glob(".*"))  # nothing half-written


def test_a_cache_that_cannot_be_written_is_a_reason(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sources / "file").write_text("")
    monkeypatch.setenv("FEDLOOM_CACHE", str(sources / "file"))
    with pytest.raises(Unavailable, match=r"cannot be used .*; set FEDLOOM_CACHE to another one"):
        load(sources)


def test_a_processor_without_avx2_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "_reason", None)
    monkeypatch.setattr(compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert "PyTorch does not use AVX2 here" in str(library.native_reason())


def test_processors_of_other_kinds_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiler.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert compiler.unsuited() is None


@pytest.mark.skipif(library.native_reason() is not None, reason="no compiled kernels on this machine")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kernel_that_python_calls_is_in_the_library(dtype: torch.dtype) -> None:
    for name in ("batchnorm_forward", "batchnorm_backward", "depthwise_forward", "block_backward"):
        assert library.kernel(name, "p", dtype)
