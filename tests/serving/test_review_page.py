"""The page of a review in a real browser."""

import csv
import re

import pytest
from playwright.sync_api import expect

from qpr_jax.duplicates.review import open_review
from qpr_jax.serving.review import make_review_app
from tests.serving.conftest import luminance
from tests.serving.test_review import EVIL, TOKEN, write_found

pytestmark = pytest.mark.slow


@pytest.fixture
def open_page(browser, serve, tmp_path, wrong):
    """() -> (the page of a review with 40 pairs, the review); nothing may be wrong at the end."""
    write_found(tmp_path / "pairs.csv")
    elsewhere, contexts, sessions = [], [], []

    def open_one():
        for session in sessions:
            session.__exit__(None, None, None)
        sessions[:] = [
            open_review(str(tmp_path / "pairs.csv"), tmp_path / "verdicts.csv", precision=0.6)
        ]
        review = sessions[0].__enter__()
        address = serve(make_review_app(review, token=TOKEN))
        contexts.append(browser.new_context())
        page = contexts[-1].new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on("request", lambda r: None if r.url.startswith(address) else elsewhere.append(r.url))
        page.goto(f"{address}/?token={TOKEN}")
        expect(page.locator("#counts")).to_contain_text("of 40 pairs")
        return page, review

    yield open_one
    for context in contexts:
        context.close()
    for session in sessions:
        session.__exit__(None, None, None)
    assert wrong == []
    assert elsewhere == []


def verdicts(path):
    with open(path, newline="", encoding="utf-8") as file:
        return [row["is_duplicate"] for row in csv.DictReader(file)]


def test_verdicts_by_the_keyboard_alone(open_page):
    page, review = open_page()
    status, counts = page.locator("#status"), page.locator("#counts")
    expect(page.locator("#estimate")).to_have_text("The first verdict gives a threshold.")
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    for key, said, kept in [
        ("y", "Kept: the same.", ["1"]),
        ("n", "Kept: not the same.", ["1", "0"]),
        ("s", "Skipped.", ["1", "0"]),
        ("Y", "Kept: the same.", ["1", "0", "1"]),
        ("u", "Taken back.", ["1", "0"]),
    ]:
        before = page.locator("#first").inner_text()
        page.keyboard.press(key)
        expect(status).to_have_text(said)
        expect(page.locator("#first")).not_to_have_text(before)
        assert verdicts(review.path) == kept
        assert page.evaluate("document.activeElement.id") == "pair"
    expect(counts).to_have_text("2 verdicts (1 yes, 1 no), 1 skipped, of 40 pairs")
    expect(page.locator("#estimate")).to_have_text(
        re.compile(r"--threshold 0\.\d+ accepts \d+ pairs at a precision of [\d.]+\s% \(90\s% ")
    )
    page.keyboard.press("Control+y")  # the browser's own
    expect(counts).to_contain_text("2 verdicts")


def test_a_second_start_goes_on(open_page):
    page, _ = open_page()
    page.keyboard.press("y")
    expect(page.locator("#counts")).to_contain_text("1 verdict")
    shown = page.locator("#id1").inner_text()
    page, review = open_page()
    expect(page.locator("#counts")).to_contain_text("1 verdict (1 yes, 0 no)")
    assert page.locator("#id1").inner_text() == shown
    assert len(review.history) == 1


def test_texts_never_become_html_and_differences_are_marked(open_page):
    page, _ = open_page()
    first = page.locator("#first")
    expect(first).to_contain_text(EVIL)
    assert page.locator("#pair img, #pair b, #pair i").count() == 0
    assert page.locator("#id1").inner_text().startswith("<i>")
    assert page.locator("#first mark").all_inner_texts() == ["2015"]
    assert page.locator("#second mark").all_inner_texts() == ["2016"]
    assert page.title() == "Review of duplicates"


def test_by_the_mouse_until_all_were_asked(open_page):
    page, review = open_page()
    for number in range(1, 41):
        page.get_by_role("button", name="Yes" if number % 2 else "No").click()
        expect(page.locator("#counts")).to_contain_text(f"{number} verdict")
    expect(page.locator("#status")).to_have_text("Kept: not the same. All pairs were asked.")
    expect(page.locator("#pair")).to_be_hidden()
    expect(page.get_by_role("button", name="Yes")).to_be_disabled()
    assert len(verdicts(review.path)) == 40
    page.keyboard.press("u")
    expect(page.locator("#pair")).to_be_visible()


def test_a_second_tab_shows_the_pair_that_is_asked(open_page, wrong):
    page, review = open_page()
    other = page.context.new_page()
    other.goto(page.url)
    expect(other.locator("#counts")).to_contain_text("0 verdicts")
    page.keyboard.press("y")
    expect(page.locator("#counts")).to_contain_text("1 verdict")
    other.keyboard.press("n")  # of the pair that was judged in the first tab
    expect(other.locator("#status")).to_contain_text("Not kept: another pair is asked now")
    expect(other.locator("#id1")).to_have_text(page.locator("#id1").inner_text())
    assert verdicts(review.path) == ["1"]
    wrong.clear()  # the browser itself notes the answer


def test_a_server_that_is_gone_is_said(open_page, wrong):
    page, _ = open_page()
    page.route("**/verdict", lambda route: route.abort())
    page.keyboard.press("y")
    expect(page.locator("#status")).to_contain_text("Not kept: ")
    expect(page.locator("#counts")).to_contain_text("0 verdicts")
    wrong.clear()


def test_a_screen_reader_hears_what_it_is(open_page):
    page, _ = open_page()
    assert page.get_by_role("heading", level=1).inner_text() == "Do these two ask the same?"
    assert page.get_by_role("region", name="Pair").count() == 1
    for name, key in [("Yes", "y"), ("No", "n"), ("Skip", "s"), ("Undo", "u")]:
        button = page.get_by_role("button", name=name, exact=True)
        assert button.get_attribute("aria-keyshortcuts") == key
    page.keyboard.press("s")
    expect(page.get_by_role("status")).to_have_text("Skipped.")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_are_readable(open_page, scheme):
    page, _ = open_page()
    page.emulate_media(color_scheme=scheme)
    page.keyboard.press("y")
    expect(page.locator("#status")).to_have_text("Kept: the same.")
    style = "(s) => getComputedStyle(document.querySelector(s))"
    body = page.evaluate(f"{style}.backgroundColor", "body")
    mark = page.evaluate(f"{style}.backgroundColor", "mark")
    inks = [("h1", body), ("#status", body), ("#counts", body), ("dt", body), ("#first", body)]
    for selector, paper in [*inks, ("mark", mark), ("#yes", body)]:
        ink = page.evaluate(f"{style}.color", selector)
        light, dark = sorted(map(luminance, (ink, paper)), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, selector
