"""The page of ``nmt inspect --html``: a dataset, and what cleaning dropped and rewrote."""

from __future__ import annotations

from html import escape
from importlib.resources import files

import yaml

from nmt.data.dataset import Dataset
from nmt.io.templates import fill, script_data
from nmt.report.datasets import facts
from nmt.report.elements import section
from nmt.report.views import dataset_parts


def dataset_page(dataset: Dataset) -> str:
    """Return one page of HTML about a dataset, which needs no network."""
    manifest = dataset.manifest
    document = facts(dataset)
    recipe = yaml.safe_dump(manifest.recipe, sort_keys=False, allow_unicode=True)
    assets = files("nmt.report")
    parts = {
        "TITLE": escape(f"Dataset {dataset.path.resolve().name}"),
        "STYLE": (assets / "page.css").read_text(encoding="utf-8"),
        "FACTS": escape(
            f"{manifest.source_lang} to {manifest.target_lang}; fingerprint {manifest.fingerprint}"
        ),
        "SECTIONS": "\n".join(
            (
                section("data", "Data", *dataset_parts(document, is_open=True)),
                section("recipe", "Recipe", f'<pre tabindex="0">{escape(recipe)}</pre>'),
            )
        ),
        "DATA": script_data(document),
        "SCRIPT": "",
    }
    return fill((assets / "page.html").read_text(encoding="utf-8"), parts)
