"""The page of ``nmt inspect --html``: a dataset, and what cleaning dropped and rewrote."""

from __future__ import annotations

from html import escape
from importlib.resources import files

import yaml

from nmt.data.dataset import Dataset
from nmt.io.page import html_page
from nmt.report.datasets import facts
from nmt.report.elements import section, titled
from nmt.report.views import dataset_parts


def dataset_page(dataset: Dataset) -> str:
    """Return one page of HTML about a dataset, which needs no network."""
    manifest = dataset.manifest
    document = facts(dataset)
    recipe = yaml.safe_dump(manifest.recipe, sort_keys=False, allow_unicode=True)
    title = f"Dataset {dataset.path.resolve().name}"
    languages = f"{manifest.source_lang} to {manifest.target_lang}"
    sections = [
        section("data", "Data", *dataset_parts(document, is_open=True)),
        section("recipe", "Recipe", f'<pre tabindex="0">{escape(recipe)}</pre>'),
    ]
    body = titled(title, f"{languages}; fingerprint {manifest.fingerprint}", sections)
    style = (files("nmt.report") / "page.css").read_text(encoding="utf-8")
    return html_page(title, body, style, document)
