"""The weights of Marian's Transformers by name, and their names in this toolkit."""

from __future__ import annotations

from collections.abc import Iterator

BIAS = "decoder_ff_logit_out_b"
OUTPUT = "decoder_ff_logit_out_W"
EMBEDDINGS = {"source": "encoder_Wemb", "target": "decoder_Wemb", "shared": "Wemb"}


def _attention(
    prefix: str, part: str, projections: dict[str, str]
) -> Iterator[tuple[str, list[str]]]:
    for name, letters in projections.items():
        for kind, symbol in (("weight", "W"), ("bias", "b")):
            yield f"{part}.{name}.{kind}", [f"{prefix}_{symbol}{letter}" for letter in letters]


def _norm(prefix: str, part: str) -> Iterator[tuple[str, list[str]]]:
    for kind, symbol in (("weight", "scale"), ("bias", "bias")):
        yield f"{part}_residual.norm.{kind}", [f"{prefix}_ln_{symbol}"]


def _feed_forward(prefix: str) -> Iterator[tuple[str, list[str]]]:
    for number, name in (("1", "inner"), ("2", "outer")):
        for kind, symbol in (("weight", "W"), ("bias", "b")):
            yield f"feed_forward.{name}.{kind}", [f"{prefix}_{symbol}{number}"]


def _layer(prefix: str, is_decoder: bool, is_recurrent: bool) -> Iterator[tuple[str, list[str]]]:
    if is_decoder and is_recurrent:
        rnn = f"{prefix}_rnn"
        yield "attention.project_in.weight", [f"{rnn}_Wf", f"{rnn}_W"]
        yield "attention.forget_bias", [f"{rnn}_bf"]
        yield from _norm(f"{rnn}_ffn", "attention")
    else:
        yield from _attention(
            f"{prefix}_self", "attention", {"project_in": "qkv", "attend.output": "o"}
        )
        yield from _norm(f"{prefix}_self_Wo", "attention")
    if is_decoder:
        context = {"project_query": "q", "project_memory": "kv", "attend.output": "o"}
        yield from _attention(f"{prefix}_context", "cross", context)
        yield from _norm(f"{prefix}_context_Wo", "cross")
    yield from _feed_forward(f"{prefix}_ffn")
    yield from _norm(f"{prefix}_ffn_ffn", "feed_forward")


def layer_weights(layers: dict[str, int], is_recurrent: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the name of each weight of the layers, and the names that make it up side by side.

    Args:
        layers: number of layers of the encoder and the decoder.
        is_recurrent: whether SSRUs are in the place of the decoder's self-attention.
    """
    for stack, count in layers.items():
        for number in range(count):
            prefix = f"{stack}_l{number + 1}"
            for ours, theirs in _layer(prefix, stack == "decoder", is_recurrent):
                yield f"{stack}.{number}.{ours}", theirs
