"""Writing of datasets: the splits, pair by pair, then the manifest."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from nmt.data.columns import RaggedArray
from nmt.data.manifest import (
    LINK_TYPE,
    MANIFEST,
    MANIFESTS,
    OFFSET_TYPE,
    PAIR_NUMBERS,
    Manifest,
    SplitCounts,
    fingerprint_of,
    link_files,
    number_file,
    token_type,
)
from nmt.data.vocabulary import UNK
from nmt.errors import NmtError
from nmt.io import documents, files


@contextmanager
def staging(path: Path, identity: str | None = None) -> Iterator[Path]:
    """Yield a directory to fill, which replaces `path` when the block ends without an exception.

    An exception removes the directory. An existing dataset at `path` stays until the block ends.

    Args:
        path: path of the dataset.
        identity: identity of the content. If a killed process left its directory, a new process
            with the same identity uses it again.

    Raises:
        NmtError: on entry, if `path` cannot be written, holds something other than a dataset, or is
            being written by another process.
    """
    path = path.resolve()
    if path.exists() and not path.is_dir():
        raise NmtError(f"{path}: is a file; choose another output_dir")
    # Replacing means removing: never a directory that somebody filled with other things.
    if path.is_dir() and any(path.iterdir()) and not (path / MANIFEST).is_file():
        raise NmtError(
            f"{path}: is not empty and not a dataset; choose another output_dir or empty it"
        )
    if other := _other_than_a_dataset(path):
        raise NmtError(
            f"{other}: is no part of the dataset in {path}, which would be replaced; move it away, "
            "or choose another output_dir"
        )
    with ExitStack() as stack:
        try:
            directory = stack.enter_context(files.whole_directory(path, identity))
        except OSError as error:
            raise NmtError(
                f"{path}: cannot be written: {error.strerror}; choose another output_dir"
            ) from None
        # Outside of the try, which would take an OSError of the block for a mistake in the path.
        yield directory


def _other_than_a_dataset(path: Path) -> Path | None:
    """Return a file in the directory that is neither hidden nor part of the dataset, if any.

    None, too, if no manifest, of any version of the format, lists the dataset's files.
    """
    try:
        ours = {MANIFEST, *json.loads((path / MANIFEST).read_bytes())["files"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    others = (file for file in path.iterdir() if file.name not in ours and file.name[0] != ".")
    return min(others, default=None)


class DatasetWriter:
    """Writer of a dataset into a directory, in bounded memory."""

    def __init__(
        self, directory: Path, languages: tuple[str, str], vocabularies: tuple[int, int]
    ) -> None:
        """Begin a dataset.

        Args:
            directory: output directory, see :func:`staging`. Files already in the directory, such
                as the subword models, become part of the dataset.
            languages: language codes of source and target.
            vocabularies: number of token ids of source and target.
        """
        self.directory = directory
        self.languages = languages
        self.vocabularies = vocabularies
        self.dtypes = (token_type(vocabularies[0]), token_type(vocabularies[1]))
        self._splits: dict[str, SplitCounts] = {}

    @contextmanager
    def split(
        self,
        name: str,
        has_links: bool = False,
        has_directions: bool = False,
        has_weights: bool = False,
    ) -> Iterator[SplitWriter]:
        """Yield a writer to append the split's pairs to, until the block ends.

        Args:
            name: of the split.
            has_links: whether the pairs have word alignments.
            has_directions: whether the pairs have several directions.
            has_weights: whether the pairs have weights.
        """
        with ExitStack() as stack:
            sides = [
                _SideWriter(f"{self.directory / name}.{language}", dtype, stack)
                for language, dtype in zip(self.languages, self.dtypes, strict=True)
            ]
            links = _LinkWriter(self.directory, name, stack) if has_links else None
            present = {"directions": has_directions, "weights": has_weights}
            numbers = {
                number: stack.enter_context((self.directory / number_file(name, number)).open("wb"))
                for number, is_present in present.items()
                if is_present
            }
            writer = SplitWriter(sides[0], sides[1], links, numbers)
            yield writer
        self._splits[name] = writer.counts()

    def finish(
        self, *, shared_vocabulary: bool, recipe: Mapping[str, Any], shard: str | None = None
    ) -> Manifest:
        """Write the manifest of every file in the directory.

        All files are synced first: if a manifest exists, even after a crash of the machine, its
        files are complete.

        Args:
            shared_vocabulary: whether the two vocabularies are one.
            recipe: the complete ``preprocess`` section.
            shard: ``I/N`` for the I-th of N parts, else None.

        Returns:
            The manifest as written.
        """
        written = sorted(path for path in self.directory.iterdir() if path.is_file())
        for file in written:
            # On disk before the manifest: a manifest after a power cut must not promise lost files.
            files.sync(file)
        facts = {file.name: documents.FileFacts.from_file(file) for file in written}
        manifest = Manifest(
            fingerprint=fingerprint_of(facts),
            source_lang=self.languages[0],
            target_lang=self.languages[1],
            source_vocabulary=self.vocabularies[0],
            target_vocabulary=self.vocabularies[1],
            shared_vocabulary=shared_vocabulary,
            source_dtype=self.dtypes[0],
            target_dtype=self.dtypes[1],
            splits=self._splits,
            files=facts,
            recipe=dict(recipe),
            shard=shard,
        )
        # Last, because a directory with a manifest counts as a dataset.
        with files.whole_file(self.directory / MANIFEST) as partial:
            partial.write_text(MANIFESTS.text(manifest), encoding="utf-8")
        return manifest


class SplitWriter:
    """Writer of the pairs of one split."""

    def __init__(
        self,
        source: _SideWriter,
        target: _SideWriter,
        links: _LinkWriter | None = None,
        numbers: Mapping[str, BinaryIO] | None = None,
    ) -> None:
        self._source = source
        self._target = target
        self._links = links
        self._numbers = numbers or {}
        self.dropped: dict[str, int] = {}
        """Dropped pairs by reason. The caller fills in this and the next two dictionaries, which
        :class:`SplitCounts` describes."""
        self.rewritten: dict[str, int] = {}
        self.examples: dict[str, list[list[str]]] = {}

    def append(self, source: RaggedArray, target: RaggedArray, direction: int = 0) -> None:
        """Append pairs of a direction, given by its number in the dataset's list of directions.

        Raises:
            ValueError: the numbers of source and target sentences differ.
        """
        if len(source.lengths) != len(target.lengths):
            raise ValueError(
                f"{len(source.lengths)} source, {len(target.lengths)} target sentences"
            )
        self._source.append(source)
        self._target.append(target)
        if "directions" in self._numbers:
            self._append_numbers("directions", np.full(len(source.lengths), direction))

    def append_links(self, links: RaggedArray) -> None:
        """Append the word alignments of pairs: numbers of source and target words in turn."""
        assert self._links is not None
        self._links.append(links)

    def append_weights(self, weights: npt.NDArray[np.floating]) -> None:
        """Append the weights of pairs in the loss."""
        self._append_numbers("weights", weights)

    def _append_numbers(self, name: str, numbers: npt.NDArray[Any]) -> None:
        self._numbers[name].write(numbers.astype(PAIR_NUMBERS[name]).tobytes())

    @property
    def linked_pairs(self) -> int:
        """Number of pairs so far that have at least one link."""
        return self._links.linked if self._links else 0

    def append_text(self, source: list[str], target: list[str]) -> None:
        """Append the original lines of held-out pairs."""
        self._source.append_text(source)
        self._target.append_text(target)

    def counts(self) -> SplitCounts:
        """Return the counts of the split so far."""
        return SplitCounts(
            pairs=self._source.sentences,
            source_tokens=self._source.tokens,
            target_tokens=self._target.tokens,
            source_unknown=self._source.unknown,
            target_unknown=self._target.unknown,
            dropped=dict(self.dropped),
            rewritten=dict(self.rewritten),
            examples={key: tuple((a, b) for a, b in pairs) for key, pairs in self.examples.items()},
        )


class _SideWriter:
    """Writer of the files of one side of a split; `stem` is their path without suffix."""

    def __init__(self, stem: str, dtype: str, stack: ExitStack) -> None:
        self.sentences = self.tokens = self.unknown = 0
        self._stem = stem
        self._dtype = dtype
        self._stack = stack
        self._tokens = self._open(".tokens")
        self._offsets = self._open(".offsets")
        # One offset more than sentences: sentence i lies between offsets i and i + 1.
        self._offsets.write(np.zeros(1, OFFSET_TYPE).tobytes())

    def append(self, sentences: RaggedArray) -> None:
        """Append sentences."""
        self._tokens.write(sentences.tokens.astype(self._dtype).tobytes())
        ends = self.tokens + np.cumsum(sentences.lengths)
        self._offsets.write(ends.astype(OFFSET_TYPE).tobytes())
        self.sentences += len(sentences.lengths)
        self.tokens += len(sentences.tokens)
        self.unknown += int(np.count_nonzero(sentences.tokens == UNK))

    def append_text(self, lines: list[str]) -> None:
        self._text.write("".join(f"{line}\n" for line in lines).encode("utf-8"))

    @cached_property
    def _text(self) -> BinaryIO:
        # Opened with the first line, because training splits keep no text.
        return self._open("")

    def _open(self, suffix: str) -> BinaryIO:
        return self._stack.enter_context(open(self._stem + suffix, "wb"))


class _LinkWriter:
    """Writer of the word alignments of a split."""

    def __init__(self, directory: Path, split: str, stack: ExitStack) -> None:
        self.linked = self._links = 0
        self._files = [
            stack.enter_context((directory / name).open("wb")) for name in link_files(split)
        ]
        self._files[1].write(np.zeros(1, OFFSET_TYPE).tobytes())

    def append(self, links: RaggedArray) -> None:
        """Append the links of pairs; see :meth:`SplitWriter.append_links`."""
        # Offsets count links, of two numbers each.
        ends = self._links + np.cumsum(links.lengths // 2)
        self._files[0].write(links.tokens.astype(LINK_TYPE).tobytes())
        self._files[1].write(ends.astype(OFFSET_TYPE).tobytes())
        self.linked += int(np.count_nonzero(links.lengths))
        self._links += len(links.tokens) // 2
