"""Tags: tokens before a sentence that no text spells.

A tag of a language, such as ``>>de<<``, says into which language to translate (Johnson et al. 2017,
spelled as in OPUS-MT). A tag of data, such as ``<bt>``, says where a training pair comes from
(Caswell et al. 2019, *Tagged Back-Translation*).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from itertools import takewhile
from random import Random

from nmt.data.directions import Direction, Directions
from nmt.errors import NmtError
from nmt.subwords.segmenters import TAG, Segmenter, WrappedSegmenter
from nmt.subwords.subwords import Subwords

Tags = tuple[list[int], list[int]]
"""Token ids before the sentences of source and target."""


def language_tag(language: str) -> str:
    """Return the piece that stands for a target language."""
    return f">>{language}<<"


def data_tag(name: str) -> str:
    """Return the piece that stands for a kind of training pairs."""
    return f"<{name}>"


def tags_of(subwords: Subwords, direction: Direction, data: str | None = None) -> Tags:
    """Return the tags of the sentences of a direction; none if the vocabulary has no tag for it.

    Args:
        subwords: subwords without the tags of a direction.
        direction: source and target language.
        data: name of the tag of data; None for no tag.

    Raises:
        NmtError: a vocabulary lacks a tag.
    """
    place = "source" if subwords.directions is None else subwords.directions.tags
    source, target = map(language_tag, direction)
    known = subwords.source.tags
    wanted = {"source": [target], "target": [], "both": [source]}[place]
    # A model of one direction needs no tag; an imported one may have them.
    if subwords.directions is None and target not in known:
        wanted = []
    kind = [] if data is None else [data_tag(data)]
    on_target = [] if place == "source" else [_id(target, subwords.target.tags)]
    return [_id(piece, known) for piece in wanted + kind], on_target


def _id(piece: str, known: Mapping[str, int]) -> int:
    if piece not in known:
        raise NmtError(
            f"the vocabulary lacks the tag {piece}; add it by preprocess.extend_vocabulary"
        )
    return known[piece]


def directions_of(subwords: Subwords, languages: Direction) -> Directions:
    """Return the directions of a model.

    A model that does not name its directions, such as a model of OPUS-MT, has its languages and the
    languages of its tags.

    Args:
        subwords: subwords of the model.
        languages: source and target language of the model.
    """
    if subwords.directions:
        return subwords.directions
    targets = [match[1] for piece in subwords.source.tags if (match := TAG.fullmatch(piece))]
    source, target = languages
    return Directions(
        trained=((source, target), *((source, tag) for tag in targets if tag != target))
    )


def tagged(subwords: Subwords, direction: Direction) -> Subwords:
    """Return subwords that put the tags of a direction before every sentence."""
    source, target = tags_of(subwords, direction)
    # Shallow, so that all directions share the loaded models.
    changed = copy.copy(subwords)
    changed.source = TaggedSegmenter(subwords.source, source) if source else subwords.source
    changed.target = TaggedSegmenter(subwords.target, target) if target else subwords.target
    changed.tags = (source, target)
    return changed


def without_tags(segmenter: Segmenter, ids: list[int]) -> tuple[list[int], list[int]]:
    """Return the tags at the beginning of a sentence, and the remaining ids."""
    known = {*segmenter.tags.values()}
    tags = list(takewhile(known.__contains__, ids))
    return tags, ids[len(tags) :]


class TaggedSegmenter(WrappedSegmenter):
    """A segmenter that puts tags before every sentence that is not empty.

    Tags have no text: only the other pieces have offsets, and decoding leaves tags out.
    """

    def __init__(self, inner: Segmenter, ids: Sequence[int]) -> None:
        """Wrap a segmenter; `ids` are the tags."""
        super().__init__(inner)
        self._ids = list(ids)

    def encode(self, lines: list[str], num_threads: int = 1) -> list[list[int]]:
        """Return the ids of every line."""
        return [self._begun(ids) for ids in self.inner.encode(lines, num_threads)]

    def sample(self, line: str, alpha: float, draw: Random) -> list[int]:
        """Return the ids of a random segmentation."""
        return self._begun(self.inner.sample(line, alpha, draw))

    def decode(self, ids: list[list[int]], num_threads: int = 1) -> list[str]:
        """Return the text of every sentence."""
        return self.inner.decode([*map(self._rest, ids)], num_threads)

    def text_offsets(self, ids: list[list[int]], num_threads: int = 1) -> list[list[int]]:
        """Return the offset of each piece in its text."""
        return self.inner.text_offsets([*map(self._rest, ids)], num_threads)

    def _begun(self, ids: list[int]) -> list[int]:
        return [*self._ids, *ids] if ids else ids

    def _rest(self, ids: list[int]) -> list[int]:
        count = len(self._ids)
        return ids[count:] if ids[:count] == self._ids else ids
