"""Import models of other toolkits as runs: one module per format.

Importing the module of a format registers the format, here or through ``nmt import --plugin``.
"""

from nmt.imports import fairseq as fairseq
from nmt.imports import huggingface as huggingface
from nmt.imports import marian as marian
from nmt.imports.base import Imported, ImportFormat, import_formats, import_model

__all__ = ["ImportFormat", "Imported", "import_formats", "import_model"]
