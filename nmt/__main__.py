"""``python -m nmt``, and so ``torchrun -m nmt train``."""

import sys
from pathlib import Path

if __name__ == "__main__":
    # Python puts the current directory first on its path, where any file passes for a library.
    here = Path.cwd()
    is_main = Path(sys.path[0]) == here and not getattr(sys.flags, "safe_path", False)
    if is_main and here not in Path(__file__).parents:
        del sys.path[0]

    from nmt.cli.app import main

    main()
