"""The search page and the review page in a real browser."""

import os
import shutil

import pytest

from qpr_jax import Retriever
from qpr_jax.duplicates.review import open_review
from qpr_jax.serving.app import make_app, make_review_app
from tests.duplicates.test_review import EVIL, write_found
from tests.serving.conftest import running
from tests.serving.test_review import TOKEN

sync_api = pytest.importorskip("playwright.sync_api")
expect = sync_api.expect
pytestmark = pytest.mark.slow


@pytest.fixture
def open_page():
    """An address -> its page, with which nothing may be wrong at the end."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("needs chromium on the PATH")
    wrong = []
    with sync_api.sync_playwright() as playwright:
        # Chromium refuses to run in its sandbox as root.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)

        def open_one(address):
            page, origin = browser.new_page(), address.partition("?")[0]
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("request", lambda r: None if r.url.startswith(origin) else wrong.append(r.url))
            page.goto(address)
            return page

        yield open_one
        browser.close()
    assert wrong == []


@pytest.fixture
def page(open_page, reranked):
    """The search page of an index with a re-ranker."""
    with running(make_app(Retriever.load(reranked))) as address:
        yield open_page(address)


def expect_shown(page, hits):
    """Wait for the hits: what was found before a key was pressed may be there still."""
    expect(page.locator("#results li .question")).to_have_text([hit.question for hit in hits])


def test_questions_are_found_by_the_keyboard_and_are_text(page, reranked):
    page.keyboard.type("cook rice")  # the input has the focus
    hits = Retriever.load(reranked).search(["cook rice"], 4)[0]
    expect_shown(page, hits)
    close = sum(hit.close for hit in hits)
    said = f"{close} question{'s' * (close > 1)} found" if close else "Nothing close"
    expect(page.get_by_role("status")).to_have_text(f"{said} for \u201ccook rice\u201d")
    expect(page.locator("#results .far")).to_have_count(4 - close)
    assert page.locator("#results img").count() == 0
    assert page.title() == "Paraphrases"
    focused = "document.activeElement.querySelector?.('.rank')?.textContent"
    for key, rank in [("ArrowDown", "1"), ("ArrowDown", "2"), ("ArrowUp", "1")]:
        page.keyboard.press(key)
        assert page.evaluate(focused) == rank
    page.get_by_role("combobox", name="Order").select_option("by distance")
    hits = Retriever.load(reranked).search(["cook rice"], 4, rerank=False)[0]
    expect(page.locator(".score, .far")).to_have_count(0)
    expect_shown(page, hits)


def test_a_link_has_the_query_and_examples_are_searched(open_page, reranked):
    with running(make_app(Retriever.load(reranked))) as address:
        page = open_page(f"{address}/?q=cook%20rice")
        expect(page.locator("#results li")).to_have_count(4)
        expect(page.locator("#results mark").first).to_be_visible()
        marked = {text.lower() for text in page.locator("#results mark").all_inner_texts()}
        assert marked <= {"cook", "rice"}
        expect(page.locator("#examples")).to_be_hidden()
        page.locator("#query").fill("")
        example = page.locator("#examples button").first
        text = example.inner_text()
        example.click()
        expect(page.locator("#results .question").first).to_have_text(text)
        assert page.evaluate("new URLSearchParams(location.search).get('q')") == text


def test_errors_are_told(page):
    page.evaluate("document.getElementById('query').removeAttribute('maxlength')")
    page.locator("#query").fill("x" * 3000)
    expect(page.locator("#status")).to_contain_text("should have at most 2000 characters")
    page.route("**/search", lambda route: route.fulfill(status=502, body="<html>Bad Gateway"))
    page.locator("#query").fill("rice")
    expect(page.locator("#status")).to_have_text("Not searched: the server answered 502")
    page.route("**/search", lambda route: route.abort())
    page.locator("#query").fill("tea")
    said = "Not searched: the server does not answer; is it running?"
    expect(page.locator("#status")).to_have_text(said)


def test_payload_is_text_addresses_are_links_and_large_numbers_are_exact(page):
    payload = {"url": "https://example.com/?a=<b>", "<i>x</i>": "javascript:alert(1)"}
    payload |= {"n": 12345678901234567890} | {f"field {i}": i for i in range(7)}
    hit = {"id": 9007199254740993, "question": "With", "distance": 1e-7, "score": None}
    answer = {"results": [[hit | {"close": True, "payload": payload}]]}
    page.route("**/search", lambda route: route.fulfill(json=answer))
    page.keyboard.type("rice")
    fields = page.locator("#results dl")
    link = fields.get_by_role("link")
    expect(link).to_have_count(1)
    assert link.get_attribute("href") == payload["url"]
    assert fields.inner_text().endswith("and 2 more")
    for number in (payload["n"], hit["id"]):
        expect(fields).to_contain_text(str(number))
    expect(page.locator(".distance")).to_have_text("distance 0.000")
    assert page.locator("#results i").count() == 0


def test_a_review_by_the_keyboard(open_page, tmp_path):
    paths = write_found(tmp_path / "pairs.csv"), tmp_path / "labels.csv"
    with (
        open_review(*paths, precision=0.6) as review,
        running(make_review_app(review, token=TOKEN)) as address,
    ):
        page = open_page(f"{address}/?token={TOKEN}")
        expect(page.locator("#first")).to_contain_text(EVIL)
        assert page.locator("#pair img, #pair b").count() == 0
        assert page.locator("#first mark").all_inner_texts() == ["2015"]
        for key, said, kept in [
            ("y", "Kept: the same.", 1),
            ("n", "Kept: not the same.", 2),
            ("s", "Skipped.", 2),
            ("u", "Taken back.", 2),
            ("Control+y", "Taken back.", 2),  # the browser's own
        ]:
            page.keyboard.press(key)
            expect(page.locator("#status")).to_have_text(said)
            assert sum(label is not None for label in review.history.values()) == kept
        expect(page.locator("#estimate")).to_contain_text("Of these pairs")
        page.evaluate("() => { window.fetch = () => Promise.reject(new Error('gone')); }")
        page.keyboard.press("y")
        expect(page.locator("#status")).to_have_text("Not kept: gone")
