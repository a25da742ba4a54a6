"""The search of fairseq-generate, as the section ``search`` of a recipe."""

from __future__ import annotations

from typing import Any

from nmt.migration.options import Draft, Options


def convert(options: Options, draft: Draft) -> None:
    """Set the section ``search`` to what fairseq-generate does."""
    beam = options.number("--beam", assumed=5)
    is_sampling = options.switch("--sampling")
    is_unnormalized = options.switch("--unnormalized")
    is_plain = is_sampling or is_unnormalized
    alpha = options.number("--lenpen", default=0.0, assumed=None if is_plain else 1.0)
    strategy = {
        "name": "beam",
        "beam": beam,
        "length_penalty": {"name": "power", "alpha": 0.0 if is_unnormalized else float(alpha)},
        "stop": "first_beam",
    }
    if is_sampling:
        temperature = options.number("--temperature", default=1.0)
        strategy = {"name": "sample", "samples": beam, "temperature": float(temperature)}
        for key in ("k", "p"):
            if (value := options.number(f"--sampling-top{key}")) is not None and value > 0:
                strategy[f"top_{key}"] = value
    ratio = float(options.number("--max-len-a", assumed=0.0))
    longest = options.number("--max-len-b", assumed=200)  # without EOS
    draft.set(
        search__strategy=strategy,
        search__max_length_ratio=ratio,
        search__max_length_offset=longest + 1,
    )
    constraints: list[dict[str, Any]] = []
    if (shortest := options.number("--min-len", assumed=1)) > 0:
        constraints.append({"name": "min_length", "length": shortest})
    if ratio == 0.0 and longest > 0:  # fairseq then ends all hypotheses with EOS
        constraints.append({"name": "max_length", "length": longest})
    if size := options.number("--no-repeat-ngram-size"):
        constraints.append({"name": "no_repeat_ngram", "size": size})
    if constraints:
        draft.set(search__constraints=constraints)
        draft.note("search.constraints: fairseq's; leave them out for CTranslate2, which has none")
