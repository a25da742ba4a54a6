"""Translate the lines of documents, each in its context, by a model trained with context.

A blank line separates two documents. A model with context on both sides translates joined lines
into joined lines, and separators in its output say which sentence is which. If a separator is
missing or a part is empty, the translator tries the half of the joined lines that holds the line,
and in the end the line alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from nmt.data.context import DocumentContext, half
from nmt.errors import NmtError
from nmt.inference.request import Request, TranslationOptions
from nmt.subwords.subwords import Subwords


def in_documents(
    blocks: Iterable[Sequence[str | Request]], context: DocumentContext, subwords: Subwords
) -> Iterator[list[Request]]:
    """Yield lines as requests with the lines around them, in order; no block is empty.

    A line waits only for the rest of its part of a document, with whole documents.

    Args:
        blocks: lines as they arrive. A line that is a request stays as it is.
        context: context of the model.
        subwords: subwords of the model, in which lengths are counted.
    """
    before: deque[str] = deque(maxlen=context.most_before)
    part: list[str] = []
    room = 0
    for block in blocks:
        ready: list[Request] = []
        for line in block:
            if isinstance(line, Request) or not line.strip():
                ready += _whole(part)
                ready.append(line if isinstance(line, Request) else Request(line))
                part = []
                before.clear()
            elif context.whole:
                [length] = _lengths([line], subwords)
                # The document is cut where the next line no longer fits the model.
                if part and length > room:
                    ready += _whole(part)
                    part = []
                room = (room if part else context.max_tokens) - length
                part.append(line)
            else:
                ready.append(Request(line, context=tuple(before)))
                before.append(line)
        if ready:
            yield ready
    if part:
        yield _whole(part)


def _whole(part: list[str]) -> list[Request]:
    return [
        Request(line, context=tuple(part[:at]), following=tuple(part[at + 1 :]))
        for at, line in enumerate(part)
    ]


def _lengths(lines: list[str], subwords: Subwords) -> list[int]:
    """Return the length of each line in source tokens, with EOS."""
    return [len(tokens) + 1 for tokens in subwords.encode_source(lines)]


def fit(
    requests: Sequence[Request], context: DocumentContext, most: int, subwords: Subwords
) -> list[Request]:
    """Return the requests, with no more context than the model takes.

    Context on both sides is left out of requests with a prefix, phrases or terminology.

    Args:
        requests: lines, with their context.
        context: context of the model.
        most: maximum length of a source.
        subwords: subwords of the model, in which lengths are counted.
    """
    # Neighbouring requests share most of their lines; each is segmented once.
    distinct = list(dict.fromkeys(chain.from_iterable(one.sentences for one in requests)))
    lengths = dict(zip(distinct, _lengths(distinct, subwords), strict=True))
    fitted = []
    for request in requests:
        before = [line for line in request.context if line.strip()]
        after = [line for line in request.following if line.strip()]
        if not context.whole:
            before, after = before[-context.most_before :], []
        room = min(context.max_tokens, most) - lengths[request.text]
        if not request.text.strip() or (context.sides == "both" and not request.is_plain):
            room = 0
        kept: list[list[str]] = []
        # The nearest lines come first, because they say most about this line.
        for lines in (before[::-1], after):
            kept.append([])
            for line in lines:
                if lengths[line] > room:
                    # No gap: the model was trained on adjacent sentences.
                    break
                room -= lengths[line]
                kept[-1].append(line)
        context_lines = tuple(kept[0][::-1])
        fitted.append(replace(request, context=context_lines, following=tuple(kept[1])))
    return fitted


def check_form(
    requests: Iterable[Request], context: DocumentContext, options: TranslationOptions
) -> None:
    """Refuse options that the translation of a line in its context does not have.

    Raises:
        NmtError: alignments are wanted, or with context on both sides n-best lists or scores.
    """
    for request in requests:
        if len(request.sentences) == 1:
            continue
        is_list = options.scored or max(options.count, request.n_best or 1) > 1
        if options.aligned or (is_list and context.sides == "both"):
            raise NmtError(
                "the model translates a line together with its context, without alignments"
                + (", n-best lists and scores" if context.sides == "both" else "")
                + "; leave them out, or make a request without context of each line"
            )


def joined_key(request: Request, at: int, context: DocumentContext) -> object:
    """Return a key that is equal for requests with the same translation."""
    if context.sides == "source" or len(request.sentences) == 1:
        return at
    return request.sentences, request.avoid, request.strategy


def narrowed(request: Request) -> Request:
    """Return a request with the half of its sentences that holds the line."""
    at, sentences = len(request.context), request.sentences
    middle = half(0, len(sentences))
    if at < middle:
        return replace(request, following=sentences[at + 1 : middle])
    return replace(request, context=request.context[middle:])
