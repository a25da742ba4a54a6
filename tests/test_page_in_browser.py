"""The page in Chromium; skipped unless Playwright and Chromium are installed.

With axe-playwright-python the page is examined for accessibility, too.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import Command
from test_serve import call, server

sync_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

UPDATES = 200
TEXT = "one two\n\nthree four"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        sync_api.expect.set_options(timeout=60_000)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(train: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has learnt to write some words."""
    directory = tmp_path_factory.mktemp("run") / "run"
    every = (f"--{name}={UPDATES}" for name in ("max-updates", "valid-every", "save-every"))
    done = train(directory, *every, "--set", "train.schedule.warmup_updates=100")
    assert done.status == 0, done.err
    return directory


@pytest.fixture(scope="module")
def address(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server from English to German, and with the same weights from German to English."""
    back = Path(shutil.copytree(run, tmp_path_factory.mktemp("back") / "run", symlinks=True))
    document = json.loads((back / "run.json").read_text())
    document |= {"source_lang": "de", "target_lang": "en"}
    del document["checksum"]
    plain = json.dumps(document, sort_keys=True)
    document["checksum"] = hashlib.sha256(plain.encode()).hexdigest()
    (back / "run.json").write_text(json.dumps(document))
    with server(run, "--model", back) as (address, _):
        yield address


@contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """The page, which may ask nobody but the server, and has no errors."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(60_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: wrong.append(request.url))
    page.goto(address)
    page.wait_for_selector("#from option", state="attached")
    yield page
    assert [url for url in wrong if not url.startswith(f"{address}/")] == []
    assert context.cookies() == []
    context.close()


def translations(address: str, text: str, **wanted: Any) -> list[str]:
    """The server's translation of each line."""
    values = {"source_lang": "en", "target_lang": "de", "lines": text.split("\n"), **wanted}
    return [line[0]["text"] for line in call(f"{address}/v1/translate", values)[1]["translations"]]


def target(page: Any) -> list[str]:
    """The lines of the translation that the page shows, once it waits for nothing."""
    page.wait_for_selector("#target:not(.waiting):not(.empty)")
    lines: list[str] = page.locator("#target p").all_text_contents()
    return lines


def type_text(page: Any, address: str, text: str) -> list[str]:
    """Type a text, and return its translation once the page shows it."""
    page.locator("#source").press_sequentially(text)
    lines = translations(address, text)
    sync_api.expect(page.locator("#target p")).to_have_text(lines)
    return lines


def tab_to(page: Any, selector: str) -> None:
    """Press Tab until an element has the focus."""
    for _ in range(9):
        page.keyboard.press("Tab")
        if page.evaluate("selector => document.activeElement.matches(selector)", selector):
            return
    raise AssertionError(f"Tab does not lead to {selector}")


def test_the_page_translates_as_one_types(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        lines = type_text(page, address, TEXT)
        sync_api.expect(page.locator("#announced")).to_have_text(" ".join(filter(None, lines)))
        assert target(page) == lines
        page.locator("#clear").click()
        assert page.locator("#target.empty").count() == 1
        assert page.evaluate("document.activeElement.id") == "source"


def test_an_older_answer_never_overwrites_a_newer_one(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        held: list[Any] = []
        aborted: list[Any] = []
        page.route("**/v1/translate", lambda route: held.append(route))
        page.on("requestfailed", lambda request: aborted.append(request.post_data_json["lines"]))
        for number, text in enumerate(("one", "one two", "one two three")):
            page.fill("#source", text)
            while len(held) <= number:
                page.wait_for_timeout(10)
        assert aborted == [["one"], ["one two"]]
        held[2].continue_()
        assert target(page) == translations(address, "one two three")


def test_words_have_alternatives_by_keyboard_alone(browser: Any, address: str) -> None:
    texts = ("three four", "one two", "two three four", "six five four")
    text, before = next(
        (text, translation)
        for text in texts
        for translation in translations(address, text)
        if len(translation.split()) > 1
    )
    with opened(browser, address) as page:
        tab_to(page, "#source")
        page.keyboard.type(text)
        sync_api.expect(page.locator("#target p")).to_have_text([before])
        tab_to(page, ".word")
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.textContent") == before.split()[1]
        assert page.evaluate("document.activeElement.getAttribute('aria-description')")
        assert page.locator("#mirror mark").count() == 1
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=menuitemradio]")
        page.keyboard.press("Escape")
        assert page.locator(".menu").count() == 0
        page.keyboard.press("Enter")
        page.wait_for_selector("[role=menuitemradio]")
        names = page.locator("[role=menuitemradio] b").all_text_contents()
        number = next(at for at, name in enumerate(names) if name != before.split()[1])
        for _ in range(number):
            page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("#restore:not([hidden])")
        [after] = target(page)
        assert after.split()[:2] == [before.split()[0], names[number]]
        assert page.evaluate("document.activeElement.textContent") == names[number]
        page.locator("#restore").press("Enter")
        sync_api.expect(page.locator("#target")).to_have_text(before)


def test_a_word_of_a_sentence_changes_that_sentence_alone(browser: Any, address: str) -> None:
    first, second = "One two.", "Three four six!"
    one, two = translations(address, f"{first}\n{second}")
    assert len(one.split()) > 0 < len(two.split())
    with opened(browser, address) as page:
        page.fill("#source", f"{first}  {second}")
        sync_api.expect(page.locator("#target p")).to_have_text([f"{one} {two}"])
        before = page.locator("#target p").text_content()
        assert before == f"{one}  {two}"
        word = page.locator(".word").nth(len(one.split()))
        word.hover()
        assert set(page.locator("#mirror mark").all_text_contents()) <= {*second.split()}
        assert "probability" in page.locator("#detail").text_content()
        word.click()
        page.wait_for_selector("[role=menuitemradio]")
        names = page.locator("[role=menuitemradio] b").all_text_contents()
        number = next(at for at, name in enumerate(names) if name != two.split()[0])
        page.locator("[role=menuitemradio]").nth(number).click()
        page.wait_for_selector("#restore:not([hidden])")
        [after] = target(page)
        assert after.startswith(f"{one}  {names[number]}")
        page.locator("#restore").press("Enter")
        sync_api.expect(page.locator("#target p")).to_have_text([f"{one} {two}"])


def test_a_word_lights_up_with_its_source_and_shows_its_probability(
    browser: Any, address: str
) -> None:
    with opened(browser, address) as page:
        type_text(page, address, "one two three")
        wanted = {"source_lang": "en", "target_lang": "de", "lines": ["one two three"]}
        answer = call(f"{address}/v1/translate", wanted | {"alignments": "words"})[1]
        [[best]] = answer["translations"]
        source, word = best["alignment"][0]
        page.locator(".word").nth(word).hover()
        assert page.locator("#mirror mark").all_text_contents()[0] == best["source_words"][source]
        shown = page.locator("#detail").text_content()
        pieces, log_probs = best["tokens"][:-1], best["token_log_probabilities"]
        assert "".join(pieces).replace("▁", " ").strip() == best["text"]
        ends = [at for at in range(1, len(pieces)) if pieces[at].startswith("▁")]
        first = sum(log_probs[: (ends or [len(pieces)])[0]])
        assert word == 0
        assert f"{round(100 * 2.718281828459045**first)}%" in shown
        page.check("#shade")
        assert page.locator("#target.shaded .word[data-doubt]").count()


def test_languages_are_swapped(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        assert page.locator("#from option").all_text_contents() == ["English", "German"]
        [translated] = type_text(page, address, "one two")
        page.locator("#swap").click()
        assert page.input_value("#source") == translated
        assert (page.input_value("#from"), page.input_value("#to")) == ("de", "en")
        back = translations(address, translated, source_lang="de", target_lang="en")
        assert target(page) == back


def test_the_page_says_what_is_wrong(browser: Any, run: Path) -> None:
    with server(run, "--max-characters", 20) as (address, _), opened(browser, address) as page:
        page.fill("#source", "one two three four five six")
        sync_api.expect(page.locator("#problem")).to_contain_text("at most 20")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_the_page_is_accessible_and_fits(
    browser: Any, address: str, scheme: str, width: int
) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}

    def check(page: Any) -> None:
        results = axe.run(page).response["violations"]
        serious = [one for one in results if one["impact"] in ("serious", "critical")]
        assert [(one["id"], one["nodes"][0]["html"]) for one in serious] == []
        assert page.evaluate("document.documentElement.scrollWidth") == width

    with opened(browser, address, **options) as page:
        check(page)
        type_text(page, address, TEXT)
        page.check("#shade")
        check(page)
        page.locator(".word").nth(1).click()
        page.wait_for_selector("[role=menuitemradio], .menu p")
        check(page)
