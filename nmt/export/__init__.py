"""Export trained runs for other engines: one module per format.

Importing the module of a format registers the format, here or through the recipe's ``plugins``.
"""

from nmt.export import ctranslate2 as ctranslate2
from nmt.export import huggingface as huggingface
from nmt.export import marian as marian
from nmt.export import onnx as onnx
from nmt.export.base import Export, ExportFormat, Stored, export_formats, export_run

__all__ = ["Export", "ExportFormat", "Stored", "export_formats", "export_run"]
