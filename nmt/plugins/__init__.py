"""Plugins: modules that register names for recipes, imported with the user's consent."""

from nmt.plugins.importing import TRUST, import_plugins, is_trusted, not_imported, plugin_names
from nmt.plugins.sources import import_copies, plugin_error, plugin_sources

__all__ = [
    "TRUST",
    "import_copies",
    "import_plugins",
    "is_trusted",
    "not_imported",
    "plugin_error",
    "plugin_names",
    "plugin_sources",
]
