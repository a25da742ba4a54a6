"""Markup in lines: taken out before translation, and put back around the words it belongs to."""

from nmt.markup.fragment import Fragment
from nmt.markup.nodes import Dialect
from nmt.markup.parsing import parse
from nmt.markup.segment import Segment

__all__ = ["Dialect", "Fragment", "Segment", "parse"]
