"""The page in a real browser."""

import shutil

import pytest
from playwright.sync_api import expect

from qpr_jax.retriever import Retriever
from qpr_jax.serving.app import make_app
from tests.runs import write_reranker
from tests.serving.conftest import QUESTIONS, luminance

pytestmark = pytest.mark.slow


@pytest.fixture
def page(browser, address, wrong):
    """The page of a server, of which nothing may be wrong at the end."""
    context = browser.new_context()
    page = context.new_page()
    elsewhere = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("request", lambda r: None if r.url.startswith(address) else elsewhere.append(r.url))
    page.goto(address)
    expect(page.locator("#query")).to_be_focused()
    yield page
    assert wrong == []
    assert elsewhere == []
    context.close()


def results(page):
    """The questions shown, when all four are."""
    rows = page.locator("#results li")
    expect(rows).to_have_count(4)
    return [rows.nth(i).locator(".question").inner_text() for i in range(4)]


def test_questions_are_found_while_one_types(page):
    page.keyboard.type("learn python")  # the input has the focus
    assert {*results(page)} == {*QUESTIONS.values()}
    expect(page.locator("#status")).to_have_text("4 questions found for \u201clearn python\u201d")
    rows = page.locator("#results li")
    assert [rows.nth(i).locator(".rank").inner_text() for i in range(4)] == ["1", "2", "3", "4"]
    near = [float(rows.nth(i).locator(".distance").inner_text().split()[-1]) for i in range(4)]
    assert near == sorted(near)
    page.locator("#query").fill("")
    expect(rows).to_have_count(0)
    expect(page.locator("#status")).to_have_text("")


def test_what_was_asked_before_is_text_and_never_runs(page):
    page.keyboard.type("<b>cook</b> rice<script>document.title='run'</script>")
    results(page)
    assert page.locator("#results img, #results b, #results script").count() == 0
    assert "<img src=x" in page.locator("#results").inner_text()
    assert page.title() == "Paraphrases"


def test_it_is_used_by_the_keyboard(page):
    page.keyboard.type("rice")
    results(page)
    focused = "document.activeElement.querySelector?.('.rank')?.textContent"
    for key, rank in [("ArrowDown", "1"), ("ArrowDown", "2"), ("ArrowUp", "1")]:
        page.keyboard.press(key)
        assert page.evaluate(focused) == rank
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.id") == "query"
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "1"
    # What comes while one is among the results leaves one there.
    page.evaluate("search()")
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")
    assert page.evaluate(focused) == "1"


def test_the_order_is_chosen(browser, folder, serve, tmp_path):
    shutil.copytree(folder, tmp_path / "mine")
    write_reranker(tmp_path / "mine", candidates=3)
    retriever = Retriever.load(tmp_path / "mine")
    page = browser.new_page()
    page.goto(serve(make_app(retriever)))
    page.keyboard.type("cook rice")
    order = page.get_by_role("combobox", name="Order")
    for name, word in [("by the re-ranker", "light"), ("by distance", False)]:
        order.select_option(name)
        hits = retriever.search(["cook rice"], 10, rerank=word)[0]
        expect(page.locator(".question").first).to_have_text(hits[0].question)
        assert results(page) == [hit.question for hit in hits]
        expect(page.locator(".score")).to_have_count(3 if word else 0)
    page.close()


def test_enter_searches_again(page):
    page.keyboard.type("rice")
    results(page)
    page.evaluate("document.getElementById('results').replaceChildren()")
    page.keyboard.press("Enter")
    results(page)


def test_a_screen_reader_hears_what_it_is(page):
    page.keyboard.type("rice")
    results(page)
    query = page.get_by_role("searchbox", name="Type a question; those that mean the same")
    assert query.count() == 1
    assert page.get_by_role("status").inner_text() == "4 questions found for \u201crice\u201d"
    assert page.get_by_role("list", name="Questions found, best first").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_readable(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.keyboard.type("rice")
    results(page)

    style = "(s) => getComputedStyle(document.querySelector(s))"
    paper = luminance(page.evaluate(f"{style}.backgroundColor", "body"))
    assert (paper > 0.5) == (scheme == "light")
    for selector in ("h1", "#status", ".distance", ".question"):
        ink = luminance(page.evaluate(f"{style}.color", selector))
        # WCAG 2.2, 1.4.3: contrast of text.
        assert (max(ink, paper) + 0.05) / (min(ink, paper) + 0.05) >= 4.5


def test_a_server_that_refuses_is_told(page, wrong):
    page.evaluate("document.getElementById('query').removeAttribute('maxlength')")
    page.locator("#query").fill("x" * 300)
    expect(page.locator("#status")).to_contain_text("String should have at most 200 characters")
    # The browser itself notes the answer.
    assert all("422" in said for said in wrong)
    wrong.clear()


def test_a_server_that_is_gone_is_told(page, wrong):
    page.route("**/search", lambda route: route.abort())
    page.keyboard.type("rice")
    expect(page.locator("#status")).to_contain_text("Not searched: ")
    wrong.clear()


def test_an_answer_that_is_no_json_is_told(page, wrong):
    page.route("**/search", lambda route: route.fulfill(status=502, body="<html>Bad Gateway"))
    page.keyboard.type("rice")
    expect(page.locator("#status")).to_have_text("Not searched: the server answered 502")
    wrong.clear()


def test_a_slow_answer_is_waited_for_aloud(page):
    page.route("**/search", lambda route: (page.wait_for_timeout(1500), route.continue_()))
    page.keyboard.type("rice")
    expect(page.locator("#status")).to_have_text("Searching\u2026")
    results(page)


def test_an_older_answer_never_covers_a_newer_one(page):
    page.evaluate(
        """() => {
          const real = window.fetch;
          let calls = 0;
          window.fetch = async (path, options) => {
            const late = calls++ === 0;
            const answer = await real(path, {...options, signal: undefined});
            if (late) await new Promise((done) => setTimeout(done, 600));
            return answer;
          };
        }"""
    )
    page.keyboard.type("cook rice")
    page.wait_for_timeout(150)
    page.keyboard.type(" how")
    first = results(page)
    page.wait_for_timeout(800)
    assert results(page) == first


def test_payload_is_shown_as_text_and_addresses_as_links(page):
    payload = {
        "url": "https://example.com/?a=<b>",
        "script": "javascript:alert(1)",
        "<i>tags</i>": ["<script>document.title='run'</script>", 7],
        "none": None,
        "long": "x" * 300,
        **{f"field {i}": i for i in range(6)},
    }
    hits = [
        {"id": "a", "question": "With", "distance": 0.5, "score": None, "payload": payload},
        {"id": 7, "question": "Without", "distance": 0.5, "score": None, "payload": None},
    ]
    page.route("**/search", lambda route: route.fulfill(json={"results": [hits]}))
    page.keyboard.type("rice")
    rows = page.locator("#results li")
    expect(rows).to_have_count(2)
    fields = rows.first.locator("dl")
    expect(fields.get_by_role("link")).to_have_count(1)
    link = fields.get_by_role("link", name="https://example.com/?a=<b>")
    assert link.get_attribute("href") == payload["url"]
    assert fields.locator("dt").all_inner_texts() == [
        *("url", "script", "<i>tags</i>", "long", "field 0", "field 1", "field 2", "field 3"),
    ]
    said = fields.locator("dd").all_inner_texts()
    assert said[1:3] == ["javascript:alert(1)", "[\"<script>document.title='run'</script>\",7]"]
    assert said[3] == "x" * 200 + "\u2026"
    assert fields.inner_text().endswith("and 2 more")
    assert rows.nth(1).locator("dl").count() == 0
    assert rows.locator("i, script").count() == 0
    assert page.title() == "Paraphrases"
