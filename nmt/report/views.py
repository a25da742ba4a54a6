"""Sections of the page about datasets and translations of the validation set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nmt.report.elements import folded, heading, number, paragraph, section, table, texts


def datasets(document: Mapping[str, Any]) -> str:
    """Return the section about the dataset of each run."""
    groups: dict[str, list[str]] = {}
    for run in document["runs"]:
        groups.setdefault(run["fingerprint"], []).append(run["name"])
    parts = []
    for fingerprint, names in groups.items():
        facts = document["datasets"][fingerprint]
        title = f"of {', '.join(names)}" if len(groups) > 1 else ""
        parts += [heading(f"Dataset {title}")] if title else []
        parts += [paragraph(facts["missing"])] if "missing" in facts else dataset_parts(facts)
    return section("data", "Data", *parts)


def dataset_parts(facts: Mapping[str, Any], is_open: bool = False) -> list[str]:
    """Return tables of a dataset: its splits, and what cleaning did, with examples.

    Args:
        facts: see :func:`nmt.report.datasets.facts`.
        is_open: whether the examples are shown at once.
    """
    languages = facts["languages"]
    head = ["split", "language", "pairs", "tokens", "unknown", "mean length", "median", "90 %"]
    rows = []
    for name, split in facts["splits"].items():
        for side, language in enumerate(languages):
            lengths = split["lengths"][side]
            tokens = split["tokens"][side]
            rows.append(
                [
                    name,
                    language,
                    number(split["pairs"]),
                    number(tokens),
                    f"{100 * split['unknown'][side] / max(1, tokens):.3f} %",
                    *(
                        number(lengths and lengths[key], int(key == "mean"))
                        for key in ("mean", "median", "most", "nearly_all", "greatest")
                    ),
                ]
            )
    sizes, used = facts["vocabulary"]["sizes"], facts["vocabulary"]["in_use"]
    uses = "; ".join(
        f"{language}: {count:,} of {size:,} tokens"
        for language, count, size in zip(languages, used, sizes, strict=True)
    )
    shared = "One vocabulary for both languages. " if facts["vocabulary"]["shared"] else ""
    parts = [
        paragraph(f"{facts['path']}; lengths are in tokens, with the end of the sentence."),
        table("Splits of the dataset", [*head, "99 %", "greatest"], rows),
        paragraph(f"{shared}In use in training sentences (a sample of 100,000 at most): {uses}."),
    ]
    for key, verb in (("dropped", "dropped pairs"), ("rewritten", "rewritten lines")):
        counts = facts[key]
        if counts:
            cells = [[reason.replace("_", " "), number(count)] for reason, count in counts.items()]
            parts.append(table(f"Training text: {verb}", ["step of cleaning", verb], cells))
        else:
            parts.append(paragraph(f"Training text: no {verb}."))
    for reason, pairs in facts["examples"].items():
        if pairs:
            heads = ("before", "after") if reason in facts["rewritten"] else languages
            title = f"Examples: {reason.replace('_', ' ')}"
            parts.append(folded(title, texts(title, heads, pairs), is_open=is_open))
    return parts


def translations(document: Mapping[str, Any]) -> str:
    """Return the section about the translations of the validation set."""
    parts = []
    for run in document["runs"]:
        facts = run["translations"]
        parts.append(heading(run["name"]) if len(document["runs"]) > 1 else "")
        parts += [paragraph(facts["missing"])] if "missing" in facts else _translations(facts)
    return section("translations", "Translations of the validation set", *parts)


def _translations(facts: Mapping[str, Any]) -> list[str]:
    rows = [
        [
            number(int(update)),
            number(values["chrf"], 2),
            number(values["length_ratio"], 3),
            number(values["repeating"]),
            number(values["empty"]),
        ]
        for update, values in facts["updates"].items()
    ]
    head = ["update", "chrF", "length ratio", "with a repetition", "empty"]
    note = (
        "The length ratio is words of the translations by words of the references. A repetition is "
        "a 4-gram of words, in languages without spaces of characters, that occurs more than once "
        "and more often than in the reference."
    )
    worst = [
        folded(
            f"chrF {row['chrf']:.1f}, line {row['line']}: {row['source'][:80]}",
            texts(
                f"Line {row['line']}",
                ("", "text"),
                [
                    ("source", row["source"]),
                    ("reference", row["reference"]),
                    *((f"update {int(at):,}", text) for at, text in row["translations"].items()),
                ],
            ),
        )
        for row in facts["worst"]
    ]
    title = f"The {len(worst)} worst of the last validation, with their translations over time"
    return [
        table("Translations over time", head, rows),
        paragraph(note),
        folded(title, *worst),
    ]
