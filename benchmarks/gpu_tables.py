"""Markdown tables of the measurements of gpu.py, from the records of its stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

Record = dict[str, Any]

PUBLISHED = 10_991
"""Target tokens a second that CTranslate2's authors publish for their fastest GPU model."""


def tables(records: dict[str, Record]) -> str:
    """Return the tables of the records, by the names of their stages."""
    if not records:
        return "Not measured yet.\n"
    last = max(records.values(), key=lambda record: str(record["date"]))
    parts = [f"{last['date']}, {last['device']}, torch {last['torch']}."]
    for make in (stages, training, decoding, loader, paper):
        parts += ["\n".join(make(records))]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: str, rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the lines of a table; none without rows. The columns' names are separated by bars."""
    if not rows:
        return
    names = [name.strip() for name in header.split("|")]
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for row in rows:
        cells = (f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row)
        yield f"| {' | '.join(cells)} |"


def stages(records: dict[str, Record]) -> Iterator[str]:
    """Yield the outcome of each stage."""
    rows = []
    for name, record in records.items():
        outcome = record["error"] or "done"
        if name == "tests":
            for counts in record["results"]:
                outcome += f"; {counts['passed']} passed, {counts['skipped']} skipped"
                outcome += "".join(f"; failed: `{test}`" for test in counts["failed"])
        rows.append((name, f"{record.get('seconds', 0):.0f}", outcome))
    yield from table("stage | seconds | outcome", rows)


def training(records: dict[str, Record]) -> Iterator[str]:
    """Yield the speed of training."""
    rows = []
    for name, record in records.items():
        for result in record["results"] if name.startswith("train ") else ():
            low, high = result["range"]["engine"]
            update_ms = (
                1e3
                * result["tokens_per_update"]
                / max(1, result["target_tokens_per_second"]["engine"])
            )
            busy = result["profile"]["milliseconds_of_an_update"] / update_ms
            rows.append(
                (
                    name.removeprefix("train "),
                    result["precision"],
                    f"{result['target_tokens_per_second']['engine']:,} ({low:,}-{high:,})",
                    result["peak_memory_mb"]["engine"],
                    f"{result['matrix_gflop_per_second'] / 1e3:,.1f}",
                    f"{result['engine_share_of_matrix_ceiling']:.1%}",
                    f"{busy:.0%}",
                )
            )
    header = "training | precision | target tokens/s (range) | peak memory, MB"
    yield from table(
        f"{header} | matrix ceiling, TFLOP/s | share of the ceiling | busy with kernels", rows
    )


def decoding(records: dict[str, Record]) -> Iterator[str]:
    """Yield the speed of translation by the number of sentences in a batch."""
    measured = {
        name: {result["sentences"]: result for result in record["results"]}
        for name, record in records.items()
        if (name.startswith("decode ") or name == "ctranslate2") and record["results"]
    }
    sizes = sorted({size for results in measured.values() for size in results})
    rows = []
    for name, results in measured.items():
        speeds = [
            results[size]["target_tokens_per_second"] if size in results else "" for size in sizes
        ]
        best = max(result["target_tokens_per_second"] for result in results.values())
        first = next(iter(results.values()))
        rows.append((name, first["precision"], first["beam"], *speeds, f"{best / PUBLISHED:.1f}"))
    columns = " | ".join(f"{size:,}" for size in sizes)
    header = f"target tokens/s by sentences in a batch | precision | beam | {columns}"
    yield from table(f"{header} | best over {PUBLISHED:,}", rows)


def loader(records: dict[str, Record]) -> Iterator[str]:
    """Yield the speed of the data loader."""
    rows = [
        (
            f"{result['batching']}, {'packs' if result['packs'] else 'padding'}",
            result["pairs_per_second"],
            result["target_tokens_per_second"],
        )
        for result in records.get("loader", {"results": []})["results"]
    ]
    yield from table("loader alone, one core | pairs/s | target tokens/s", rows)


def paper(records: dict[str, Record]) -> Iterator[str]:
    """Yield the reports of the training of the paper's base model."""
    rows = [
        (
            result["update"],
            f"{result['seconds']:.0f}" if "seconds" in result else "",
            f"{result['loss']:.3f}",
            f"{result['perplexity']:.2f}",
            f"{result['target_tokens_per_second']:,.0f}" if "seconds" in result else "validation",
        )
        for result in records.get("paper", {"results": []})["results"]
    ]
    header = "base model on a replica, update | seconds | loss | perplexity | target tokens/s"
    yield from table(header, rows)
