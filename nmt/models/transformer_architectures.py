"""Named Transformers: the sizes of papers and of other toolkits."""

from __future__ import annotations

from nmt.models.base import architectures
from nmt.models.patterns import patterns
from nmt.models.transformer import TransformerConfig

architectures.add("transformer_base", TransformerConfig())
architectures.add(
    "transformer_big", TransformerConfig(d_model=1024, d_ff=4096, heads=16, dropout=0.3)
)
architectures.add(
    "transformer_big_en_fr", TransformerConfig(d_model=1024, d_ff=4096, heads=16, dropout=0.1)
)
# fairseq's transformer_iwslt_de_en: separate vocabularies, decoder input and output tied.
architectures.add(
    "transformer_iwslt_de_en",
    TransformerConfig(d_ff=1024, heads=4, dropout=0.3, tied_embeddings="decoder"),
)
# The tiny model of Revisit-MMT for Multi30k (Wu et al. 2021).
architectures.add(
    "transformer_tiny",
    TransformerConfig(
        encoder_layers=4, decoder_layers=4, d_model=128, d_ff=256, heads=4, dropout=0.3
    ),
)
# A deep encoder and a single decoder layer (Kasai et al. 2021), whose steps are cheap.
architectures.add(
    "transformer_deep_shallow",
    TransformerConfig(encoder_layers=12, decoder_layers=1, dropout=0.2),
)
# Marian's students for browsers and phones (Bogoychev et al. 2020, github.com/browsermt/students),
# with the later size between the two (mozilla/translations).
architectures.add(
    "student_base", TransformerConfig(decoder_layers=2, decoder_attention=patterns["ssru"])
)
architectures.add(
    "student_base_memory",
    TransformerConfig(d_model=384, d_ff=1536, decoder_layers=4, decoder_attention=patterns["ssru"]),
)
architectures.add(
    "student_tiny",
    TransformerConfig(d_model=256, d_ff=1536, decoder_layers=2, decoder_attention=patterns["ssru"]),
)
