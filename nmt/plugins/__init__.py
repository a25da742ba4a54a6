"""Plugins: modules that register what a recipe names, and the user's consent to run their code."""

from nmt.plugins.importing import TRUST, import_plugins, is_trusted, not_imported, plugin_names
from nmt.plugins.sources import import_copies, plugin_sources

__all__ = [
    "TRUST",
    "import_copies",
    "import_plugins",
    "is_trusted",
    "not_imported",
    "plugin_names",
    "plugin_sources",
]
