"""Markup in lines: taken out before translation, and put back around the words it belongs to."""

from nmt.inference.markup.parsing import parse
from nmt.inference.markup.segment import Fragment, Segment
from nmt.inference.markup.units import Dialect

__all__ = ["Dialect", "Fragment", "Segment", "parse"]
