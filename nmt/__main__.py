"""``python -m nmt``, and so ``torchrun -m nmt train``; and the program ``nmt``."""

import sys


def main() -> None:
    """Import and run the command line."""
    # First of all, because the other imports take seconds in which Ctrl-C would print a traceback.
    from nmt.cli.interruption import end_at_interrupt

    end_at_interrupt()
    # Before torch is imported, which reads these settings once.
    from nmt.runtime.machine import keep_threads_within_limit, let_waiting_threads_sleep

    keep_threads_within_limit()
    # Training usually has the machine to itself; threads that spin make it 5 % faster there.
    if sys.argv[1:2] not in (["train"], ["init"]):
        let_waiting_threads_sleep()
    from nmt.cli.app import main as run

    run()


if __name__ == "__main__":
    from pathlib import Path

    # Python puts the current directory first on its path, where any file passes for a library.
    here = Path.cwd()
    is_main = Path(sys.path[0]) == here and not getattr(sys.flags, "safe_path", False)
    if is_main and here not in Path(__file__).parents:
        del sys.path[0]

    main()
