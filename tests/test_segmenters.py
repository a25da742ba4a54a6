import json
import pickle
from random import Random

import pytest
import sentencepiece
from foreign_models import ENGLISH, GERMAN, MODELS, UNION, foreign_model, pieces_of

from nmt.data.vocabulary import BOS, EOS, PAD, UNK, VOCABULARIES, Vocabulary
from nmt.errors import NmtError
from nmt.subwords.segmenters import ListedPieces
from nmt.subwords.subwords import Subwords


def listed(pieces=UNION):
    return Subwords(*MODELS, vocabularies=[Vocabulary.from_pieces(pieces)])


def separate():
    return Subwords(
        *MODELS, vocabularies=[Vocabulary.from_pieces(pieces_of(model)) for model in MODELS]
    )


def single():
    return Subwords(MODELS[0], vocabularies=[Vocabulary.from_pieces(pieces_of(MODELS[0]))])


def test_the_ids_are_those_of_the_list_and_the_pieces_those_of_the_models():
    subwords = listed()
    assert subwords.shared
    assert subwords.source_size == subwords.target_size == len(UNION) + 4
    for encode, names, model, lines in (
        (subwords.encode_source, subwords.source_pieces, MODELS[0], ENGLISH),
        (subwords.encode_target, subwords.target_pieces, MODELS[1], GERMAN),
    ):
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        encoded = encode(lines)
        assert [names(row) for row in encoded] == processor.encode(lines, out_type=str)
        assert [[UNION[token - 4] for token in row] for row in encoded] == [*map(names, encoded)]
    assert subwords.decode_target(subwords.encode_target(GERMAN)) == GERMAN
    assert subwords.decode_source(subwords.encode_source(ENGLISH)) == ENGLISH


def test_a_piece_outside_the_list_is_unknown_and_a_character_of_the_other_model_is_known():
    subwords = listed([piece for piece in UNION if piece != "d"])
    [[*tokens]] = subwords.encode_source(["dz"])
    z = UNION.index("z") - (UNION.index("d") < UNION.index("z"))
    assert "z" not in pieces_of(MODELS[0])
    assert [tokens[-2], tokens[-1]] == [UNK, z + 4]
    assert subwords.decode_source([[UNK]]) == ["⁇"]


def test_a_language_tag_is_one_piece_where_it_begins_a_line():
    source = listed().source
    tag = UNION.index(">>deu<<") + 4
    [plain, tagged, inside, other] = source.encode(
        ["the cat", ">>deu<< the cat", "the >>deu<< cat", ">>fra<< the cat"]
    )
    assert tagged == [tag, *plain]
    assert tag not in inside
    assert tag not in other
    assert source.encode([">>deu<<"]) == [[tag]]
    assert source.sample(">>deu<< the cat", 0.1, Random(1))[0] == tag


def test_offsets_are_those_of_the_pieces():
    subwords = listed()
    line = ">>deu<< the cat"
    [offsets] = subwords.source_offsets([line])
    [tokens] = subwords.encode_source([line])
    assert len(offsets) == len(tokens)
    assert offsets[0] == 0
    assert subwords.source_pieces(tokens)[-1] == "▁cat"
    assert line[offsets[-1] :] == " cat"
    # A piece that the target's model does not know keeps its mark, which becomes a space.
    english = UNION.index("▁cat") + 4
    [katze] = subwords.encode_target(["Katze"])
    row = [BOS, english, *katze, PAD, EOS]
    [text], [begins] = subwords.decode_target([row]), subwords.target_offsets([row])
    assert text == "cat Katze"
    assert len(begins) == len(row)
    assert begins == sorted(begins)
    assert text[begins[2] :].strip() == "Katze"
    assert subwords.decode_target([]) == []
    assert subwords.target_offsets([]) == []


@pytest.mark.parametrize("make", [listed, separate, single])
def test_lists_are_saved_with_their_models(tmp_path, make):
    subwords = make()
    single().save(tmp_path)
    paths = subwords.save(tmp_path)
    assert {*tmp_path.iterdir()} == {*paths}
    for copy in (Subwords.load(tmp_path), pickle.loads(pickle.dumps(subwords))):
        assert copy.is_same_as(subwords)
        assert copy.fingerprint == subwords.fingerprint
        assert copy.shared == subwords.shared
        assert copy.encode_source(ENGLISH) == subwords.encode_source(ENGLISH)
    assert subwords.fingerprint not in (Subwords(MODELS[0]).fingerprint, listed([]).fingerprint)
    assert single().source is not separate().source
    assert isinstance(single().target, ListedPieces)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (["<pad>", "<unk>", "<s>", "</s>", "a", "b", "a"], "pieces has a piece twice"),
        (["a", "b"], "pieces must begin with <pad>, <unk>, <s>, </s>"),
        ([], "pieces must begin with"),
    ],
)
def test_a_list_that_names_no_ids_is_refused(tmp_path, pieces, message):
    listed().save(tmp_path)
    path = tmp_path / "vocabulary.json"
    good = VOCABULARIES.document(Vocabulary.from_pieces([]))
    path.write_text(json.dumps({**good, "pieces": pieces}))
    with pytest.raises(NmtError, match=message):
        Subwords.load(tmp_path)


def test_an_ordinary_piece_may_have_the_name_of_a_special_one():
    vocabulary = Vocabulary.from_pieces(["<s>", "a"])
    assert vocabulary.ids == {"<s>": 4, "a": 5}


def test_a_line_alone_is_as_among_others():
    subwords, lines = Subwords(*MODELS), [*ENGLISH, "", " a  cat "]
    ids = subwords.encode_source(lines)
    assert [subwords.encode_source([line]) for line in lines] == [[row] for row in ids]
    assert [subwords.decode_source([row]) for row in ids] == [
        [text] for text in subwords.decode_source(ids)
    ]


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_phrase_in_a_script_without_spaces_has_no_space_before_it(is_listed):
    models = MODELS[0], foreign_model(["我有一只小狗", "小狗看见我", "一只狗看见小狗"] * 9, 40)
    lists = [Vocabulary.from_pieces(pieces_of(model)) for model in models]
    subwords = Subwords(*models, vocabularies=lists if is_listed else [])
    [line], [phrase] = subwords.encode_target(["我有"]), subwords.encode_phrases(["小狗"])
    assert subwords.decode_target([[*line, *phrase]]) == ["我有小狗"]
    assert subwords.encode_phrases(["dog"]) == subwords.encode_target(["dog"])
