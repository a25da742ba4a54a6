import platform
import subprocess
import sys

FAULTS = """
import resource, torch
from nmt.memory import keep_freed_memory
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


def test_freed_memory_is_used_again_without_the_kernel() -> None:
    usual, kept = faults(""), faults("keep_freed_memory()")
    assert kept <= usual  # equal where the C library is not glibc
    is_glibc = sys.platform == "linux" and platform.libc_ver()[0] == "glibc"
    if is_glibc and usual > 10_000:  # fewer where the kernel gives huge pages
        assert kept < usual / 10
