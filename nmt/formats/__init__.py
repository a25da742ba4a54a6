"""Formats of other toolkits: one module per format, with its import and its export.

Importing the module of a format registers the format, here or through the recipe's ``plugins``.
"""

from nmt.formats import argos as argos
from nmt.formats import bergamot as bergamot
from nmt.formats import ctranslate2 as ctranslate2
from nmt.formats import fairseq as fairseq
from nmt.formats import huggingface as huggingface
from nmt.formats import m2m100 as m2m100
from nmt.formats import marian as marian
from nmt.formats import onnx as onnx
from nmt.formats.exporting import ExportFormat, export_formats, export_run, load_exportable
from nmt.formats.importing import Imported, ImportFormat, import_formats, import_model

__all__ = [
    "ExportFormat",
    "ImportFormat",
    "Imported",
    "export_formats",
    "export_run",
    "import_formats",
    "import_model",
    "load_exportable",
]
