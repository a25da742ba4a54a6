import ctypes
import errno
import gc
import platform
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import torch
from for_each import for_each

from nmt.inference.fast.workers import giving_back_memory
from nmt.runtime.machine import is_out_of_memory

FAULTS = """
import resource, torch
from nmt.runtime.machine import keep_freed_memory
{call}
size = (1 << 23) + 4096  # a little over 32 MiB
for _ in range(10):
    torch.ones(size)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    torch.ones(size)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(call: str) -> int:
    """Page faults of allocating the same tensor ten times."""
    script = FAULTS.format(call=call)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@for_each(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
        RuntimeError("could not create a primitive"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("can't start new thread"),
        RuntimeError("Resource temporarily unavailable"),  # of a thread in C++
        SystemError("error return without exception set"),  # of Python without memory for one
    ],
)
def test_memory_that_is_used_up_is_known_by_what_each_library_says(error: Exception) -> None:
    assert is_out_of_memory(error)


def test_memory_that_torch_cannot_have_is_known() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60)
    assert is_out_of_memory(error.value)


@for_each(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("could not create a primitive descriptor for an LSTM"),
        ImportError("No module named 'absent'"),
    ],
)
def test_other_errors_are_not_taken_for_a_want_of_memory(error: Exception) -> None:
    assert not is_out_of_memory(error)


def test_freed_memory_is_used_again_without_the_kernel() -> None:
    usual, kept = faults(""), faults("keep_freed_memory()")
    assert kept <= usual  # equal where the C library is not glibc
    is_glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    if is_glibc and usual > 10_000:  # fewer where the kernel gives huge pages
        assert kept < usual / 10


KERNELS = """
import torch
from nmt.runtime.machine import keep_few_kernels
{call}
weight = torch.ones(64, 64, dtype=torch.bfloat16)
for rows in [*range(8, 308), 8]:
    torch.ones(rows, 64, dtype=torch.bfloat16) @ weight
"""


def last_kernel(call: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What oneDNN says of making the kernel of a product whose shape was seen 300 shapes ago."""
    monkeypatch.setenv("ONEDNN_VERBOSE", "profile_create")
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)
    script = KERNELS.format(call=call)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    made = [line for line in done.stdout.splitlines() if "create:" in line]
    if not made:
        pytest.skip("this torch does not multiply bf16 with oneDNN")
    return made[-1]


def test_training_keeps_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "cache_hit" in last_kernel("", monkeypatch)
    assert "cache_miss" in last_kernel("keep_few_kernels()", monkeypatch)


def test_freed_memory_goes_back_to_the_kernel_now_and_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, given_back = 0.0, list[tuple[int, float]]()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    library = SimpleNamespace(malloc_trim=lambda pad: given_back.append((pad, now)))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    function = giving_back_memory(abs)
    for moment in (1.0, 9.0, 10.0, 11.0, 19.0, 20.0):
        now = moment
        assert function(-3) == 3
    assert given_back == [(0, 10.0), (0, 20.0)]
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace())  # another C library
    function, now = giving_back_memory(abs), 40.0
    assert function(-3) == 3


def test_the_garbage_collector_passes_over_modules_and_tests() -> None:
    assert gc.get_freeze_count() > 100_000, "see pytest_collection_finish in conftest.py"
