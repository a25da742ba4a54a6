"""Translate a table with Ray Data.

    python translate_ray.py --model run --input crawl.parquet --output translated

The input is Parquet, with unique ids in the column `id` and lines in the column `text`. The output
is a directory of Parquet files with these columns and `translation`, in any order; `id` gives the
order. Each worker loads the model once. Ray replaces a worker that dies, and gives its rows to
another. The same command resumes after a crash: the ids of translated rows are in OUTPUT.done.
"""

import argparse
import os
import sys

import pandas
import ray
from ray.data.checkpoint import CheckpointConfig

import nmt
from nmt.errors import NmtError


class Translate:
    """A worker: it keeps the model."""

    def __init__(self, model: str) -> None:
        self.translator = nmt.Translator(model, device="cpu", threads=1)
        print(f"worker {os.getpid()} has loaded {model}", file=sys.stderr, flush=True)

    def __call__(self, table: pandas.DataFrame) -> pandas.DataFrame:
        """Return the table with a column `translation`."""
        translations = self.translator.translate(table["text"].fillna(""))
        return table.assign(translation=list(translations))


def main() -> None:
    """Translate the rows that are not translated yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="run or export; all workers see its path")
    parser.add_argument("--input", required=True, help="Parquet file or directory, or its URI")
    parser.add_argument("--output", required=True, help="directory of all workers, or its URI")
    parser.add_argument("--workers", type=int, help="largest number of workers [one a core]")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of a task [%(default)s]")
    arguments = parser.parse_args()
    model, source, output = map(absolute, (arguments.model, arguments.input, arguments.output))
    try:
        nmt.Translator(model, device="cpu")  # exports a run once, not in each worker
    except NmtError as error:
        parser.exit(1, f"translate_ray.py: error: {error}\n")
    ray.init()
    workers = arguments.workers or int(ray.cluster_resources()["CPU"])
    ray.data.DataContext.get_current().checkpoint_config = CheckpointConfig(
        "id", f"{output}.done", delete_checkpoint_on_success=False
    )
    (
        ray.data.read_parquet(source)
        .select_columns(["id", "text"])
        .repartition(target_num_rows_per_block=arguments.rows, strict=True)
        .map_batches(
            Translate,
            fn_constructor_args=[model],
            batch_size=None,  # the rows of a task
            batch_format="pandas",
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
            num_cpus=1,
        )
        .write_parquet(output)
    )


def absolute(path: str) -> str:
    """Return a path that holds in the directories of workers, too."""
    return path if "://" in path else os.path.abspath(path)


if __name__ == "__main__":
    main()
