#!/usr/bin/env bash
# Runs all tests and measurements on a GPU in one command, and writes their tables:
#
#     benchmarks/gpu.sh --minutes 9 --output work/gpu --part 1
#     benchmarks/gpu.sh --minutes 9 --output work/gpu --part 2 --write-docs
#
# PYTHON names the interpreter. nmt needs no installation, only its dependencies.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" benchmarks/gpu.py "$@"
