"""Lines of text as a Parquet table, and back.

    python lines.py to-parquet crawl.en crawl.parquet
    python lines.py to-text crawl.parquet translated crawl.de

The table has the columns `id`, which numbers the lines from 0, and `text`. The column `translation`
becomes text in the order of `id`, if each line has a translation.
"""

import argparse
from pathlib import Path

import pyarrow
from pyarrow import dataset, parquet

from nmt.errors import NmtError
from nmt.io.files import whole_file
from nmt.io.lines import Lines

BLOCK = 100_000
"""Lines in memory at a time."""

SCHEMA = pyarrow.schema({"id": pyarrow.int64(), "text": pyarrow.string()})


def to_parquet(text: Path, table: Path) -> None:
    """Number the lines of a text."""
    with whole_file(table) as partial, parquet.ParquetWriter(partial, SCHEMA) as writer:
        start = 0
        for lines in Lines.open(text).blocks(BLOCK):
            ids = range(start, start + len(lines))
            writer.write(pyarrow.table({"id": ids, "text": lines}, SCHEMA))
            start += len(lines)


def to_text(table: Path, translated: Path, text: Path) -> None:
    """Write the translations of all lines, in order.

    Raises:
        NmtError: there is no table, or a line has no translation.
    """
    for path in (table, translated):
        if not path.exists():
            raise NmtError(f"{path}: no such table; check the path")
    count, rows = dataset.dataset(table).count_rows(), dataset.dataset(translated)
    with whole_file(text) as partial, partial.open("w", encoding="utf-8", newline="\n") as file:
        for start in range(0, count, BLOCK):
            block = (dataset.field("id") >= start) & (dataset.field("id") < start + BLOCK)
            found = rows.to_table(["id", "translation"], filter=block).sort_by("id")
            # A worker that died just before its task was done has its lines translated twice.
            by_id = dict(
                zip(found["id"].to_pylist(), found["translation"].to_pylist(), strict=True)
            )
            expected = range(start, min(start + BLOCK, count))
            if missing := len(expected) - len(by_id):
                raise NmtError(
                    f"{translated}: of lines {start + 1} to {expected.stop}, {missing} have no "
                    "translation; run the translation again"
                )
            file.writelines(f"{by_id[at]}\n" for at in expected)


def main() -> None:
    """Run one of the two commands."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("to-parquet", help="number the lines of a text")
    packing.add_argument("text", type=Path)
    packing.add_argument("table", type=Path)
    unpacking = commands.add_parser("to-text", help="write the translations of a table in order")
    unpacking.add_argument("table", type=Path)
    unpacking.add_argument("translated", type=Path, help="directory of translate_ray/spark.py")
    unpacking.add_argument("text", type=Path)
    arguments = parser.parse_args()
    try:
        if arguments.command == "to-parquet":
            to_parquet(arguments.text, arguments.table)
        else:
            to_text(arguments.table, arguments.translated, arguments.text)
    except (NmtError, OSError, pyarrow.ArrowException) as error:
        parser.exit(1, f"lines.py: error: {error}\n")


if __name__ == "__main__":
    main()
