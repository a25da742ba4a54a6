"""Models of other toolkits with random weights, for the tests of import and export."""

import io
import json
from pathlib import Path
from typing import Any

import sentencepiece
import torch

ENGLISH = ["the cat sat on a mat", "a dog and a cat", "the dog sat"] * 9
GERMAN = ["die Katze sitzt auf einer Matte", "ein Hund und eine Katze", "der Hund sitzt"] * 9


def foreign_model(text: list[str], size: int) -> bytes:
    """A SentencePiece model whose special ids are not ours, as toolkits train them by default."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    """The ordinary pieces of a model."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(token) for token in range(3, len(processor))]


MODELS = foreign_model(ENGLISH, 26), foreign_model(GERMAN, 32)
UNION = list(dict.fromkeys([*pieces_of(MODELS[1]), ">>deu<<", *pieces_of(MODELS[0])]))
"""The ordinary pieces of both models and a language tag, in an order of their own."""

SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 40,
}


def bpe_model(text: list[str], size: int) -> bytes:
    """A SentencePiece model of BPE with the special ids of M2M-100 and NLLB."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text),
        model_writer=model,
        vocab_size=size,
        model_type="bpe",
        minloglevel=2,
    )
    return model.getvalue()


def m2m_model(
    directory: Path, kind: str = "nllb", seed: int = 0, end: float = 3.0, **changes: Any
) -> Any:
    """Write an ``M2M100ForConditionalGeneration`` and its tokenizer; return both.

    Its weights are random and sharp, and it hardly predicts unknown pieces and padding.

    Args:
        directory: directory to write.
        kind: tokenizer: "nllb" has eng_Latn, deu_Latn and fra_Latn, "m2m100" the eight languages
            of WMT21.
        seed: seed of the weights.
        end: bias of the end of a sentence.
        changes: keys of the configuration.
    """
    import transformers

    directory.mkdir(parents=True, exist_ok=True)
    model_file = directory / "sentencepiece.bpe.model"
    model_file.write_bytes(bpe_model([*ENGLISH, *GERMAN], 60))
    if kind == "nllb":
        languages = ["deu_Latn", "eng_Latn", "fra_Latn"]
        tokenizer = transformers.NllbTokenizer.from_pretrained(
            directory, extra_special_tokens=languages, src_lang="eng_Latn", tgt_lang="deu_Latn"
        )
    else:
        # Another order than in the SentencePiece model.
        names = ["<s>", "<pad>", "</s>", "<unk>", *reversed(pieces_of(model_file.read_bytes()))]
        vocabulary = {piece: token for token, piece in enumerate(names)}
        (directory / "vocab.json").write_text(json.dumps(vocabulary))
        tokenizer = transformers.M2M100Tokenizer(
            str(directory / "vocab.json"),
            str(model_file),
            src_lang="en",
            tgt_lang="de",
            language_codes="wmt21",
        )
    tokenizer.save_pretrained(directory)
    torch.manual_seed(seed)
    # The tokens of languages of M2M-100 are not in the length.
    size = len(tokenizer) + (2 if kind == "nllb" else 8 + 2)
    values = {**SIZES, "vocab_size": size, **changes}
    config = transformers.M2M100Config(**values)
    model = transformers.M2M100ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.5 * torch.randn_like(weight)
        table, norm = model.model.shared.weight, model.model.decoder.layer_norm
        table *= 0.5
        norm.weight *= 4
        # There is no bias of the output, but a direction of the decoder's output that is constant.
        norm.weight[0], norm.bias[0], table[:, 0] = 0.0, 1.0, 0.0
        table[[0, 1, 3], 0], table[2, 0] = -40.0, end
    model.generation_config.update(num_beams=4, max_length=40, no_repeat_ngram_size=2)
    model.save_pretrained(directory)
    return model, tokenizer


def write_vocabulary(path: Path, pieces: list[str]) -> int:
    """Write OPUS-MT's layout: the end first, then unknown, padding last; return the size."""
    names = ["</s>", "<unk>", *pieces, "<pad>"]
    path.write_text(json.dumps({piece: token for token, piece in enumerate(names)}))
    return len(names)


def marian_model(directory: Path, seed: int = 0, end: float = 2.0, **changes: Any) -> Any:
    """Write a ``MarianMTModel`` and its tokenizer into a directory, and return the model.

    Its weights are random and sharp; `end` is the bias of the end of a sentence.
    """
    import transformers

    directory.mkdir(parents=True, exist_ok=True)
    for name, model in zip(("source.spm", "target.spm"), MODELS, strict=True):
        (directory / name).write_bytes(model)
    is_shared = changes.get("share_encoder_decoder_embeddings", True)
    pieces = [UNION, UNION] if is_shared else [pieces_of(model) for model in MODELS]
    longest = max(map(len, pieces))  # transformers has one id of padding for both sides
    pieces = [[*some, *(f"<filler {n}>" for n in range(longest - len(some)))] for some in pieces]
    names = ("vocab.json", "vocab.json") if is_shared else ("vocab.json", "target_vocab.json")
    sizes = [
        write_vocabulary(directory / name, some) for name, some in zip(names, pieces, strict=True)
    ]
    special = {"pad_token_id": sizes[1] - 1, "decoder_start_token_id": sizes[1] - 1}
    values = {**SIZES, "vocab_size": sizes[0], "decoder_vocab_size": sizes[1], **special, **changes}
    torch.manual_seed(seed)
    config = transformers.MarianConfig(**values)
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.2 * torch.randn_like(weight)
        model.final_logits_bias.normal_()
        model.final_logits_bias[0, :2] = torch.tensor([end, -20.0])
    model.generation_config.update(
        num_beams=4,
        max_length=40,
        no_repeat_ngram_size=2,
        bad_words_ids=[[special["pad_token_id"]]],
    )
    model.save_pretrained(directory)
    transformers.MarianTokenizer(
        str(directory / "source.spm"),
        str(directory / "target.spm"),
        str(directory / "vocab.json"),
        None if is_shared else str(directory / "target_vocab.json"),
        source_lang="en",
        target_lang="de",
        separate_vocabs=not is_shared,
    ).save_pretrained(directory)
    return model
