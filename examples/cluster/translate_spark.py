r"""Translate a table with Spark.

    spark-submit --master 'local[8,4]' translate_spark.py \
        --model run --input crawl.parquet --output translated

The input is Parquet, with unique ids in the column `id` and lines in the column `text`. The output
is a directory of Parquet files with these columns and `translation`, in the order of `id`. Each
worker loads the model once. Spark replaces a worker that dies, and repeats its task. The same
command resumes after a crash: rows whose `id` is in the output are not translated again.
"""

import argparse
import functools
import math
import os
import sys
from collections.abc import Iterator

import pandas
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import nmt
from nmt.errors import NmtError
from nmt.inference import LineTranslator


@functools.cache
def load(model: str) -> LineTranslator:
    """Return the translator of this worker, which translates many tasks."""
    translator = nmt.Translator(model, device="cpu", threads=1)
    print(f"worker {os.getpid()} has loaded {model}", file=sys.stderr, flush=True)
    return translator


def translate(model: str, tables: Iterator[pandas.DataFrame]) -> Iterator[pandas.DataFrame]:
    """Yield tables with a column `translation`."""
    translator = load(model)
    for table in tables:
        yield table.assign(translation=list(translator.translate(table["text"])))


def main() -> None:
    """Translate the rows that are not translated yet."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, help="run or export; all workers see its path")
    parser.add_argument("--input", required=True, help="Parquet file or directory, or its URI")
    parser.add_argument("--output", required=True, help="directory of all workers, or its URI")
    parser.add_argument("--rows", type=int, default=10_000, help="rows of a task [%(default)s]")
    arguments = parser.parse_args()
    model = os.path.abspath(arguments.model)
    try:
        nmt.Translator(model, device="cpu")  # exports a run once, not in each worker
    except NmtError as error:
        parser.exit(1, f"translate_spark.py: error: {error}\n")
    # With version 2 the file of a finished task is in the output at once, also if the job fails.
    version = "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"
    spark = SparkSession.builder.appName("nmt").config(version, 2).getOrCreate()
    spark.sparkContext.addPyFile(__file__)
    table = spark.read.parquet(arguments.input).select("id", "text").fillna("", ["text"])
    try:
        table = table.join(
            spark.read.schema(table.schema).parquet(arguments.output), "id", "left_anti"
        )
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
    if tasks := math.ceil(table.count() / arguments.rows):
        (
            table.repartitionByRange(tasks, "id")
            .sortWithinPartitions("id")
            .mapInPandas(
                functools.partial(translate, model),
                table.selectExpr("*", "text AS translation").schema,
            )
            .write.mode("append")
            .parquet(arguments.output)
        )


if __name__ == "__main__":
    # Workers import this file by its name, so that they keep the model of `load` between tasks.
    import translate_spark

    translate_spark.main()
