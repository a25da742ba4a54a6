"""A fuzzer: damages every kind of file that the project reads, and runs the commands that read it.

    material.py    a small dataset, run, export, ...: what is damaged
    mutations.py   the mutator
    seals.py       checksums, recomputed after a file was changed
    kinds.py       which files are of which kind, and which commands read them
    child.py       a command in a process with bounded memory and time, and its outcome
    __main__.py    all of it, in all cores; a table of outcomes

Run it by ``make fuzz``; ``docs/robustness.md`` says what it found.
"""
