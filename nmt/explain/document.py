"""Explanations as plain values for JSON, and as one HTML file that needs no network."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from html import escape
from importlib.resources import files
from typing import Any

import torch
from torch import Tensor

from nmt.explain.explanation import Explanation
from nmt.explain.summaries import summarise
from nmt.io.page import html_page

DIGITS = 6
"""Digits of a number after the decimal point."""

SCRIPTS = ("attention", "page")
"""Files of the page's script, in the order in which they are joined."""


def document(
    models: Sequence[Sequence[Explanation]],
    facts: Sequence[Mapping[str, Any]],
    numbers: Callable[[Tensor], Any],
) -> dict[str, Any]:
    """Return explanations as plain values.

    Args:
        models: for each model its explanations of the same lines.
        facts: facts about each model.
        numbers: writes a tensor: :func:`listed` or :func:`packed`.
    """
    return {
        "models": [
            {**said, "heads": _heads(explanations), "sentences": _plain(explanations, numbers)}
            for said, explanations in zip(facts, models, strict=True)
        ]
    }


def page(document: Mapping[str, Any], title: str) -> str:
    """Return the page of a document whose tensors are packed."""
    body = _asset("page.html").replace("{{TITLE}}", escape(title))
    script = "\n".join(_asset(f"{name}.js") for name in SCRIPTS)
    return html_page(title, body, _asset("page.css"), document, script)


def listed(tensor: Tensor) -> Any:
    """Return the numbers of a tensor as nested lists."""
    return _rounded(tensor.tolist())


def packed(tensor: Tensor) -> dict[str, Any]:
    """Return a tensor in 16 bits a number: 0 is `low`, 65535 is `high`; base64, little-endian."""
    values = tensor.double().cpu()
    low, high = values.min().item(), values.max().item()
    # A shade on a screen has 8 bits, so 16 lose nothing that a page shows.
    steps = ((values - low) / ((high - low) or 1.0) * 65535).round().to(torch.int32)
    content = steps.numpy().astype("<u2").tobytes()
    shape = list(tensor.shape)
    return {"shape": shape, "low": low, "high": high, "data": base64.b64encode(content).decode()}


def _heads(explanations: Sequence[Explanation]) -> list[dict[str, Any]]:
    heads = summarise([explanation.attention for explanation in explanations])
    return [{**vars(head), "attends_to": head.attends_to} for head in heads]


def _rounded(values: Any) -> Any:
    if isinstance(values, list):
        return [_rounded(value) for value in values]
    return round(values, DIGITS)


def _plain(value: Any, numbers: Callable[[Tensor], Any]) -> Any:
    if isinstance(value, Tensor):
        return numbers(value[0] if value.dim() == 4 else value)  # a batch of one
    if is_dataclass(value):
        # Not by asdict, which would copy every tensor.
        return {field.name: _plain(getattr(value, field.name), numbers) for field in fields(value)}
    if isinstance(value, dict):
        return {key: _plain(part, numbers) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part, numbers) for part in value]
    return round(value, DIGITS) if isinstance(value, float) else value


def _asset(name: str) -> str:
    return (files("nmt.explain") / name).read_text(encoding="utf-8")
