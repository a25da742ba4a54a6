"""The quickstart corpus: its German is right, its bytes are fixed, its splits are apart."""

import hashlib
import importlib
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
from for_each import for_each

QUICKSTART = Path(__file__).resolve().parents[1] / "examples" / "quickstart"
sys.path.insert(0, str(QUICKSTART))
try:
    clauses = importlib.import_module("clauses")
    corpus = importlib.import_module("corpus")
    dice = importlib.import_module("dice")
    english = importlib.import_module("english")
    german = importlib.import_module("german")
    lexicon = importlib.import_module("lexicon")
    links = importlib.import_module("links")
    phrases = importlib.import_module("phrases")
    simple_sentences = importlib.import_module("simple_sentences")
    complex_sentences = importlib.import_module("complex_sentences")
    inflection = importlib.import_module("inflection")
    writer = importlib.import_module("writer")
finally:
    sys.path.remove(str(QUICKSTART))

Case, Tense, Pair, Clause = lexicon.Case, clauses.Tense, lexicon.Pair, clauses.Clause
NUM_DRAWN = 30_000
SPLITS = ("train", "valid", "test")
SHA256 = "df39ab693a644751b964e7e6e6cfb15c2c425514a0ac7d46a1196f83f632fab0"
COUNTS = (
    "500 test, 500 valid, 24000 train pairs; word forms in training: 3366 English, 4679 German\n"
)
ANNA = phrases.proper_name(Pair("Anna", "Anna"), clauses.SHE)
ME, YOU, HE, SHE, WE, THEY = (phrases.pronoun(who) for who in phrases.PRONOUNS.values())
IT_FEMININE = phrases.pronoun(clauses.IT_BY_GENDER["f"])
YESTERDAY, TOMORROW = Pair("yesterday", "gestern"), Pair("tomorrow", "morgen")
TO_BERLIN, IN_BERLIN = Pair("to Berlin", "nach Berlin"), Pair("in Berlin", "in Berlin")


def noun(singular):
    compounds = {compound.english: compound for compound in lexicon.compounds()}
    return lexicon.nouns().get(singular) or compounds[singular]


def np(determiner, singular, adjective=None, *, is_plural=False):
    described_by = lexicon.adjectives()[adjective] if adjective else None
    return phrases.noun_phrase(determiner, noun(singular), described_by, is_plural=is_plural)


def clause(subject, verb, **rest):
    return Clause(subject=subject, verb=lexicon.verbs()[verb], **rest)


def stated(*args, **rest):
    return simple_sentences.finished(simple_sentences.main_clause(clause(*args, **rest)))


def asked(*args, **rest):
    words = clause(*args, **rest)
    return simple_sentences.finished(Pair(english.question(words), german.inverted(words)), "?")


def modal(word):
    return next(modal for modal in writer.MODALS if modal.german == word)


def combined(main, conjunction, under, *, is_subordinate_first=False):
    inner = complex_sentences.subordinate_clause(Pair(*conjunction), under)
    return simple_sentences.finished(
        complex_sentences.combined(main, inner, is_subordinate_first=is_subordinate_first)
    )


def infinitive_after(main, verb, thing):
    words = simple_sentences.main_clause(main)
    inner = clause(main.subject, verb, object=thing)
    return simple_sentences.finished(
        Pair(
            f"{words.english} {english.infinitive(inner)}",
            f"{words.german}, {german.infinitive(inner)}",
        )
    )


@pytest.fixture(scope="module")
def pairs_by_split():
    return corpus.splits(corpus.DEFAULT_SEED, corpus.DEFAULT_TRAIN_PAIRS)


def contents_digest(directory):
    digest = hashlib.sha256()
    for path in sorted(directory.iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def test_the_command_writes_the_pinned_bytes(tmp_path):
    arguments = ["--output-dir", str(tmp_path / "corpus")]
    done = subprocess.run(
        [sys.executable, str(QUICKSTART / "corpus.py"), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", COUNTS)
    assert contents_digest(tmp_path / "corpus") == SHA256


def test_a_second_run_in_another_process_writes_the_same_bytes(tmp_path, pairs_by_split):
    corpus.write_splits(tmp_path / "corpus", pairs_by_split)
    assert contents_digest(tmp_path / "corpus") == SHA256
    names = sorted(path.name for path in (tmp_path / "corpus").iterdir())
    assert names == [
        *("test.align", "test.de", "test.en", "train.de", "train.en"),
        *("valid.align", "valid.de", "valid.en"),
    ]


WORKED_CASES = {
    "the verb comes second after a fronted time": (
        stated(
            ANNA, "buy", object=np("a", "lamp"), tense=Tense.FUTURE, time=TOMORROW, fronted="time"
        ),
        "Tomorrow, Anna will buy a lamp.",
        "Morgen wird Anna eine Lampe kaufen.",
    ),
    "the verb comes second after a fronted place": (
        stated(HE, "eat", object=np("a", "apple"), place=IN_BERLIN, fronted="place"),
        "In Berlin, he eats an apple.",
        "In Berlin isst er einen Apfel.",
    ),
    "the participle closes a clause in the perfect": (
        stated(HE, "visit", object=np("my", "brother"), tense=Tense.PAST, time=YESTERDAY),
        "He visited my brother yesterday.",
        "Er hat gestern meinen Bruder besucht.",
    ),
    "verbs of motion take sein": (
        stated(WE, "go", place=phrases.towards(np("the", "school"), "school"), tense=Tense.PAST),
        "We went to the school.",
        "Wir sind in die Schule gegangen.",
    ),
    "a modal sends the infinitive to the end": (
        stated(ME, "repair", object=np("the", "bicycle"), modal=modal("müssen"), tense=Tense.PAST),
        "I had to repair the bicycle.",
        "Ich musste das Fahrrad reparieren.",
    ),
    "a negated modal": (
        stated(SHE, "come", place=TO_BERLIN, modal=modal("können"), is_negated=True),
        "She cannot come to Berlin.",
        "Sie kann nicht nach Berlin kommen.",
    ),
    "a separable prefix closes the clause": (
        stated(YOU, "open", object=np("the", "door")),
        "You open the door.",
        "Du machst die Tür auf.",
    ),
    "a separable prefix rejoins its verb in a subordinate clause": (
        combined(
            clause(ANNA, "sleep"),
            ("because", "weil"),
            clause(HE, "turn off", object=np("the", "radio")),
        ),
        "Anna sleeps because he turns off the radio.",
        "Anna schläft, weil er das Radio ausschaltet.",
    ),
    "a particle stands after a pronoun": (
        stated(THEY, "turn on", object=IT_FEMININE),
        "They turn it on.",
        "Sie schalten sie ein.",
    ),
    "zu goes between prefix and verb": (
        infinitive_after(clause(ME, "forget to", tense=Tense.PAST), "lock", np("the", "suitcase")),
        "I forgot to lock the suitcase.",
        "Ich habe vergessen, den Koffer abzuschließen.",
    ),
    "a clause that comes first makes the verb follow it": (
        combined(
            clause(ANNA, "return", place=TO_BERLIN, tense=Tense.PAST),
            ("after", "nachdem"),
            clause(SHE, "thank", object=np("the", "neighbour"), tense=Tense.PLUPERFECT),
            is_subordinate_first=True,
        ),
        "After she had thanked the neighbour, Anna returned to Berlin.",
        "Nachdem sie dem Nachbarn gedankt hatte, ist Anna nach Berlin zurückgekehrt.",
    ),
    "when is als in the past": (
        combined(
            clause(WE, "laugh", tense=Tense.PAST),
            ("when", "als"),
            clause(np("the", "guest", is_plural=True), "arrive", tense=Tense.PAST),
        ),
        "We laughed when the guests arrived.",
        "Wir haben gelacht, als die Gäste angekommen sind.",
    ),
    "that-clauses end in the verb": (
        combined(
            clause(HE, "say that", tense=Tense.PAST),
            ("that", "dass"),
            clause(SHE, "be", tense=Tense.PAST, predicate=Pair("tired", "müde")),
        ),
        "He said that she was tired.",
        "Er hat gesagt, dass sie müde war.",
    ),
    "adjectives are weak after the article": (
        stated(ME, "see", object=np("the", "tower", "old")),
        "I see the old tower.",
        "Ich sehe den alten Turm.",
    ),
    "adjectives are mixed after ein": (
        stated(ME, "see", object=np("a", "horse", "black")),
        "I see a black horse.",
        "Ich sehe ein schwarzes Pferd.",
    ),
    "adjectives are strong without article": (
        stated(ME, "drink", object=np("", "coffee", "hot")),
        "I drink hot coffee.",
        "Ich trinke heißen Kaffee.",
    ),
    "the dative plural takes n": (
        stated(ME, "help", object=np("our", "brother", "young", is_plural=True)),
        "I help our young brothers.",
        "Ich helfe unseren jungen Brüdern.",
    ),
    "receiver before gift": (
        stated(
            HE,
            "give",
            indirect=np("the", "student"),
            object=np("a", "book", "interesting"),
            tense=Tense.PAST,
        ),
        "He gave the student an interesting book.",
        "Er hat dem Studenten ein interessantes Buch gegeben.",
    ),
    "a possessor in the genitive": (
        stated(
            WE, "find", object=phrases.possessed(np("the", "doctor"), noun("key")), tense=Tense.PAST
        ),
        "We found the doctor's key.",
        "Wir haben den Schlüssel des Arztes gefunden.",
    ),
    "a possessor's name comes first": (
        stated(
            WE, "find", object=phrases.possessed(ANNA, noun("dress"), lexicon.adjectives()["new"])
        ),
        "We find Anna's new dress.",
        "Wir finden Annas neues Kleid.",
    ),
    "a relative pronoun agrees with its noun and takes the case of its clause": (
        stated(
            ME,
            "know",
            object=replace(
                np("the", "woman"),
                relative=phrases.object_relative(
                    clause(HE, "help", object=phrases.relative_pronoun(np("the", "woman")))
                ),
            ),
        ),
        "I know the woman whom he helps.",
        "Ich kenne die Frau, der er hilft.",
    ),
    "a relative clause follows the participle": (
        stated(
            ME,
            "sell",
            tense=Tense.PAST,
            object=replace(
                np("the", "coat"),
                relative=phrases.object_relative(
                    clause(SHE, "need", object=phrases.relative_pronoun(np("the", "coat")))
                ),
            ),
        ),
        "I sold the coat that she needs.",
        "Ich habe den Mantel verkauft, den sie braucht.",
    ),
    "a subject with a relative clause between commas": (
        stated(
            replace(
                np("the", "man"),
                relative=phrases.subject_relative(
                    clause(phrases.relative_pronoun(np("the", "man")), "live", place=IN_BERLIN)
                ),
            ),
            "sing",
        ),
        "The man who lives in Berlin sings.",
        "Der Mann, der in Berlin wohnt, singt.",
    ),
    "nicht follows a definite object": (
        stated(SHE, "read", object=np("the", "letter"), is_negated=True),
        "She does not read the letter.",
        "Sie liest den Brief nicht.",
    ),
    "an indefinite object takes kein": (
        stated(SHE, "buy", object=np("a", "hat"), is_negated=True, tense=Tense.PAST),
        "She did not buy a hat.",
        "Sie hat keinen Hut gekauft.",
    ),
    "nicht precedes an object with a preposition": (
        stated(THEY, "wait for", object=np("the", "bus"), is_negated=True),
        "They do not wait for the bus.",
        "Sie warten nicht auf den Bus.",
    ),
    "a question begins with the verb": (
        asked(YOU, "call", object=HE, tense=Tense.PAST),
        "Did you call him?",
        "Hast du ihn angerufen?",
    ),
    "reflexive verbs": (
        stated(ME, "look forward to", object=np("the", "birthday party")),
        "I look forward to the birthday party.",
        "Ich freue mich auf das Geburtstagsfest.",
    ),
    "compounds keep the gender of their head": (
        stated(HE, "clean", object=np("the", "kitchen window", "dirty")),
        "He cleans the dirty kitchen window.",
        "Er putzt das schmutzige Küchenfenster.",
    ),
    "time before manner before place": (
        stated(
            WE,
            "travel",
            place=TO_BERLIN,
            manner=Pair("by train", "mit dem Zug"),
            time=TOMORROW,
            tense=Tense.FUTURE,
        ),
        "We will travel to Berlin by train tomorrow.",
        "Wir werden morgen mit dem Zug nach Berlin reisen.",
    ),
    "place in the dative, contracted": (
        stated(SHE, "wait", place=phrases.at_rest(np("the", "station", "big"), "station")),
        "She waits at the big station.",
        "Sie wartet am großen Bahnhof.",
    ),
    "the progressive": (
        stated(ME, "wash", object=np("my", "shirt", is_plural=True), tense=Tense.PROGRESSIVE),
        "I am washing my shirts.",
        "Ich wasche gerade meine Hemden.",
    ),
    "what has lasted until now is present": (
        stated(
            ANNA,
            "live",
            place=IN_BERLIN,
            time=Pair("for two years", "seit zwei Jahren"),
            tense=Tense.LASTING,
        ),
        "Anna has lived in Berlin for two years.",
        "Anna wohnt seit zwei Jahren in Berlin.",
    ),
    "Herr is declined": (
        stated(ME, "know", object=phrases.titled_name(Pair("Novak", "Novak"), clauses.HE)),
        "I know Mr Novak.",
        "Ich kenne Herrn Novak.",
    ),
    "coordinated subjects are plural": (
        stated(phrases.coordinated(ANNA, np("her", "aunt")), "travel", place=TO_BERLIN),
        "Anna and her aunt travel to Berlin.",
        "Anna und ihre Tante reisen nach Berlin.",
    ),
    "counted things": (
        stated(SHE, "need", object=np(phrases.counted(23), "chair", is_plural=True)),
        "She needs twenty-three chairs.",
        "Sie braucht dreiundzwanzig Stühle.",
    ),
}


@for_each("phenomenon", WORKED_CASES)
def test_a_worked_case(phenomenon):
    pair, english_sentence, german_sentence = WORKED_CASES[phenomenon]
    assert pair == (english_sentence, german_sentence)


def test_numbers_in_digits_exchange_point_and_comma():
    assert inflection.digits("1,250") == "1.250"
    assert inflection.digits("12.50") == "12,50"


def test_german_says_units_before_tens():
    assert phrases.number(23) == ("twenty-three", "dreiundzwanzig")
    assert phrases.number(30) == ("thirty", "dreißig")
    assert phrases.number(16) == ("sixteen", "sechzehn")


def test_nouns_are_declined():
    forms = {
        ("house", Case.GENITIVE, False): "Hauses",
        ("house", Case.DATIVE, True): "Häusern",
        ("car", Case.DATIVE, True): "Autos",
        ("neighbour", Case.ACCUSATIVE, False): "Nachbarn",
        ("bus", Case.GENITIVE, False): "Busses",
        ("history student", Case.GENITIVE, False): "Geschichtsstudenten",
    }
    for (word, case, is_plural), form in forms.items():
        assert inflection.noun_form(noun(word), case, is_plural=is_plural) == form


def test_verbs_are_conjugated():
    forms = {
        "read": ("lese", "liest", "liest", "lesen"),
        "work": ("arbeite", "arbeitest", "arbeitet", "arbeiten"),
        "dance": ("tanze", "tanzt", "tanzt", "tanzen"),
        "invite": ("lade", "lädst", "lädt", "laden"),
        "admire": ("bewundere", "bewunderst", "bewundert", "bewundern"),
        "know that": ("weiß", "weißt", "weiß", "wissen"),
    }
    for word, expected in forms.items():
        verb = lexicon.verbs()[word]
        assert tuple(inflection.present(verb, who) for who in clauses.Agreement) == expected


def test_an_object_relative_clause_needs_an_object():
    with pytest.raises(ValueError, match="needs an object"):
        phrases.object_relative(clause(SHE, "sleep"))


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(ValueError, match="weights must be positive"):
        dice.Dice(1).weigh([("never", 0)])


def test_an_goes_before_a_vowel_that_is_heard():
    assert english.sentence("a old hat and a university") == "An old hat and a university."


def test_the_held_out_sentences_do_not_depend_on_the_size_of_the_training_set(pairs_by_split):
    small = corpus.splits(corpus.DEFAULT_SEED, 10)
    assert len(small["train"]) == 10
    assert small["valid"] == pairs_by_split["valid"]
    assert small["test"] == pairs_by_split["test"]


def test_another_seed_gives_another_corpus(pairs_by_split):
    assert corpus.splits(7, 10)["test"] != pairs_by_split["test"]


def test_the_splits_have_their_sizes(pairs_by_split):
    sizes = [len(pairs_by_split[split]) for split in SPLITS]
    assert sizes == [24_000, 500, 500]


@pytest.mark.parametrize("side", [0, 1])
def test_no_sentence_occurs_twice_within_or_between_splits(pairs_by_split, side):
    sentences = [pair[side] for split in SPLITS for pair in pairs_by_split[split]]
    assert len(set(sentences)) == len(sentences)


def test_an_english_sentence_always_has_the_same_german_one():
    translations = {}
    for pair in islice(corpus.drawn_pairs(seed=3), NUM_DRAWN):
        assert translations.setdefault(pair.english, pair.german) == pair.german
    assert len(translations) < NUM_DRAWN  # some came twice, so that the law was put to the test


def test_there_are_thousands_of_word_forms_and_few_are_new_in_the_test_set(pairs_by_split):
    for side, at_least in ((0, 3000), (1, 4500)):
        train = [pair[side] for pair in pairs_by_split["train"]]
        known = corpus.word_forms(train)
        assert len(known) >= at_least
        words = [word for pair in pairs_by_split["test"] for word in corpus.words(pair[side])]
        share_of_new = sum(word not in known for word in words) / len(words)
        assert 0.001 < share_of_new < 0.02


def test_sentences_are_of_a_length_that_is_soon_learnt(pairs_by_split):
    lengths = [len(pair.english.split()) for pair in pairs_by_split["train"]]
    assert 8.5 < sum(lengths) / len(lengths) < 10
    assert sum(length <= 16 for length in lengths) / len(lengths) > 0.98


def test_sentences_begin_with_a_capital_end_with_a_mark_and_have_single_blanks(pairs_by_split):
    for split in SPLITS:
        for sentence in (sentence for pair in pairs_by_split[split] for sentence in pair):
            assert sentence[0].isupper() or sentence[0].isdigit()
            assert sentence[-1] in ".?"
            assert " ".join(sentence.split()) == sentence
            assert " ," not in sentence
            assert ",," not in sentence
            assert not sentence.endswith((",.", ",?"))


@for_each(
    ("english_words", "german_words", "line"),
    [
        ("The bus to Venice will leave at 0:50.", "Der Bus nach Venedig wird um 0.50 Uhr abfahren.",
         "0-0 1-1 2-2 3-3 4-4 5?4 5-8 6-5 6-7 7-6"),
        ("These garden lamps cost 96.10 euros.", "Diese Gartenlampen kosten 96,10 Euro.",
         "0-0 1-1 2-1 3-2 4-3 5-4"),
        ("They opened the window because it was not black.",
         "Sie haben das Fenster aufgemacht, weil es nicht schwarz war.",
         "0-0 1?1 1-4 2-2 3-3 4-5 5-6 6-9 7-7 8-8"),
        ("The man whom Sven meets comes to the forest.",
         "Der Mann, den Sven trifft, kommt in den Wald.", "0-0 1-1 2-2 3-3 4-4 5-5 6-6 7-7 8-8"),
        ("Last week, Anna turned it off.", "Letzte Woche hat Anna es ausgeschaltet.",
         "0-0 1-1 2-3 3?2 3-5 4-4 5?2 5-5"),
    ],
)  # fmt: skip
def test_gold_alignments_say_which_words_belong_together(english_words, german_words, line):
    assert corpus.alignment(Pair(english_words, german_words)) == line


def test_nearly_every_german_word_has_a_link(pairs_by_split):
    num_words = num_linked = num_sure = 0
    for pair in pairs_by_split["test"][:200]:
        sure, possible = links.links(pair)
        assert sure <= possible
        num_words += len(pair.german.split())
        num_linked += len({at for _, at in possible})
        num_sure += len({at for _, at in sure})
    assert num_linked > 0.98 * num_words
    assert num_sure > 0.85 * num_words
