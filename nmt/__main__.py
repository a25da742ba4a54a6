"""``python -m nmt``, and so ``torchrun -m nmt train``."""

from nmt.cli.app import main

if __name__ == "__main__":
    main()
