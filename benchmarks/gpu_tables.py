"""Markdown tables of the measurements of gpu.py, from the records of its stages."""

from __future__ import annotations

import re
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
    for make in (stages, training, kernels, decoding, loader, curves):
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
    for name, result in trainings(records):
        low, high = result["range"]["engine"]
        busy = result["profile"]["milliseconds_of_an_update"] / update_ms(result)
        rows.append(
            (
                name,
                result["precision"],
                f"{result['target_tokens_per_second']['engine']:,} ({low:,}-{high:,})",
                result["peak_memory_mb"]["engine"],
                f"{result['matrix_gflop_per_second'] / 1e3:,.1f}",
                f"{result['engine_share_of_matrix_ceiling']:.1%}",
                f"{busy:.0%}",
                ", ".join(result["own_kernels"]),
            )
        )
    header = "training | precision | target tokens/s (range) | peak memory, MB"
    header += " | matrix ceiling, TFLOP/s | share of the ceiling | busy with kernels"
    yield from table(f"{header} | kernels that a trial chose", rows)


def trainings(records: dict[str, Record]) -> Iterator[tuple[str, Record]]:
    """Yield name and result of each measured training."""
    for name, record in records.items():
        if name.startswith("train "):
            chosen: list[str] = []
            for result in record["results"]:
                chosen = result.get("own_kernels", chosen)
                if "range" in result:
                    yield name.removeprefix("train "), {**result, "own_kernels": chosen}


def update_ms(result: Record) -> float:
    """Milliseconds of an update."""
    speed = max(1, result["target_tokens_per_second"]["engine"])
    return float(1e3 * result["tokens_per_update"] / speed)


KINDS = {
    "attention": "attend|query_gradient|key_gradient|flash",
    "loss": "cross_entropy",
    "norms": "add_norm|layer_norm",
    "rounding to fp8": r"\bfp8\b",
    "products": r"::\w*mm$|gemm|nvjet|cutlass|xmma|splitk|scaled_mm|matmul",
    "optimizer": "multi_tensor|foreach|adam",
    "embeddings": "embedding|index|sort",
    "dropout": "dropout",
    "compiled": "^triton_",
    "elementwise": "",
}
"""Kinds of kernels, and patterns of their names; the first that matches counts."""


def kernels(records: dict[str, Record]) -> Iterator[str]:
    """Yield the milliseconds of an update by kind of kernel, next to the floors of flops.py."""
    rows = []
    for name, result in trainings(records):
        spent = dict.fromkeys(KINDS, 0.0)
        for kernel, milliseconds in result["profile"]["kernels"]:
            kind = next(kind for kind, it in KINDS.items() if re.search(it, kernel, re.I))
            spent[kind] += milliseconds
        whole = result["profile"]["milliseconds_of_an_update"]
        cells = [f"{it:.2f}" for it in (*spent.values(), whole - sum(spent.values()))]
        rows.append((name, *cells, f"{update_ms(result):.1f}"))
    columns = " | ".join(KINDS)
    yield from table(f"kernels of an update, ms | {columns} | smaller ones | whole update", rows)


def decoding(records: dict[str, Record]) -> Iterator[str]:
    """Yield the speed of translation by the number of sentences in a batch."""
    measured: dict[tuple[str, str], dict[int, Record]] = {}
    for name, record in records.items():
        if name.startswith("decode ") or name == "ctranslate2":
            for result in record["results"]:
                of_engine = measured.setdefault((name, result["precision"]), {})
                of_engine[result["sentences"]] = result
    sizes = sorted({size for results in measured.values() for size in results})
    rows = []
    for (name, precision), results in measured.items():
        speeds = [
            results[size]["target_tokens_per_second"] if size in results else "" for size in sizes
        ]
        best = max(result["target_tokens_per_second"] for result in results.values())
        beam = next(iter(results.values()))["beam"]
        rows.append((name, precision, beam, *speeds, f"{best / PUBLISHED:.1f}"))
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


def curves(records: dict[str, Record]) -> Iterator[str]:
    """Yield the loss of the base model by update, in each precision."""
    reports: dict[str, dict[int, Record]] = {}
    for name, record in records.items():
        if name.startswith("curve "):
            precision = name.removeprefix("curve ")
            reports[precision] = {it["update"]: it for it in record["results"] if "seconds" in it}
    updates = sorted({update for every in reports.values() for update in every})
    rows = []
    for update in updates:
        row: list[object] = [update]
        for every in reports.values():
            report = every.get(update)
            speed = "" if report is None else f"{report['target_tokens_per_second']:,.0f}"
            row += ["" if report is None else f"{report['loss']:.3f}", speed]
        rows.append(row)
    columns = " | ".join(f"loss in {it} | target tokens/s" for it in reports)
    yield from table(f"base model on a replica, update | {columns}", rows)
