"""The cache of examples/: what it answers, what leaves, threads, a restart and a kill."""

import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from examples import semantic_cache
from examples.semantic_cache import SemanticCache
from qpr_jax.pair_model.plain import PlainModel
from tests.kills import killed_at
from tests.runs import start_python

ASKED = "How do I turn on dark mode?"
THINGS = ["printer", "scanner", "mouse", "laptop", "phone", "badge", "chair", "projector"]
WRITER = """
from examples.semantic_cache import SemanticCache
cache = SemanticCache("cache", size=4)  # so that it compacts, too
for number in range(1000):
    cache.put(f"What is the code of door {number}?", f"answer {number}")
    print(number, flush=True)
"""


@pytest.fixture
def cache(tmp_path):
    return SemanticCache(str(tmp_path / "cache"))


def test_settings_out_of_range_are_refused(tmp_path):
    for name, values in {
        "threshold": (50, -0.1, float("nan")),
        "ttl": (0, -1, float("nan")),
        "size": (0, -1, 2.5),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match="expected a threshold from 0 to 1, a ttl above"):
                SemanticCache(str(tmp_path / "cache"), **{name: value})
    assert not (tmp_path / "cache").exists()


def questions(cache):
    return [entry.text for entry in cache.retriever]


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""

    class Clock:
        now = 1e9

        def time(self):
            return self.now

    monkeypatch.setattr(semantic_cache, "time", clock := Clock())
    return clock


def test_paraphrases_are_answered_and_opposites_are_not(cache):
    assert cache.get(ASKED) is None
    cache.put(ASKED, "Under Display.")
    cache.put("Set the heating to 20 degrees", "Done.")
    for same in (ASKED.lower(), "How do I enable the dark mode?", "how can i switch on dark mode"):
        assert cache.get(same) == "Under Display."
    for other in (
        "How do I turn off dark mode?",
        "Set the heating to 22 degrees",
        "bake bread",
        "",
    ):
        assert cache.get(other) is None
    assert cache.counts == {"hits": 3, "misses": 5}
    assert [near[:2] for near in cache.near_misses] == [
        ("How do I turn off dark mode?", ASKED),
        ("Set the heating to 22 degrees", "Set the heating to 20 degrees"),
    ]
    assert all(near[2] < cache.threshold for near in cache.near_misses)


def test_a_right_entry_is_found_behind_an_opposite(cache):
    cache.put("turn off the dark mode", "off")
    cache.put("please switch the dark mode on", "on")
    assert cache.get("turn on the dark mode") == "on"


def test_the_same_text_is_replaced(cache):
    for answer in ("old", "new"):
        cache.put(ASKED, answer)
    cache.put(ASKED.upper(), {"text": "newest", "sources": [1, None]})
    assert cache.get(ASKED) == {"text": "newest", "sources": [1, None]}
    assert len(cache.retriever) == 1


def test_answers_end_with_their_time(cache, clock):
    cache.ttl = 60
    cache.put(ASKED, "old")
    clock.now += 59
    assert cache.get(ASKED) == "old"
    clock.now += 2  # a hit does not lengthen it
    assert cache.get(ASKED) is None
    cache.put(THINGS[0], "other")
    assert questions(cache) == [THINGS[0]]
    cache.put(ASKED, "new")
    assert cache.get(ASKED) == "new"


def test_the_least_recently_used_leaves(cache, tmp_path):
    cache.size = 3
    for thing in THINGS[:3]:
        cache.put(thing, thing)
    assert cache.get(THINGS[0]) == THINGS[0]
    cache.put(THINGS[3], "new")
    assert questions(cache) == [THINGS[0], *THINGS[2:4]]
    again = SemanticCache(str(tmp_path / "cache"), size=2)  # by the times of their puts
    again.put(THINGS[4], "newer")
    assert questions(again) == THINGS[3:5]
    size = sum(path.stat().st_size for path in (tmp_path / "cache" / "index").iterdir())
    for _ in range(12):
        again.put(THINGS[4], "newest")
    assert sum(p.stat().st_size for p in (tmp_path / "cache" / "index").iterdir()) < 1.5 * size


@pytest.mark.parametrize("size", [20, 1000])
def test_threads_share_it(cache, size):
    cache.size = size

    def use(thing):
        for number in range(6):
            question = f"Where is {thing} {number}?"
            cache.put(question, question)
            assert cache.get(question) in (question, None if size == 20 else question)

    with ThreadPoolExecutor(len(THINGS)) as pool:
        list(pool.map(use, THINGS))
    assert cache.counts["hits"] + cache.counts["misses"] == 48
    assert len(cache.retriever) == len(cache.times) == min(size, 48)


@pytest.mark.parametrize("killed_after", [1, 9])
def test_a_kill_loses_nothing_that_put_returned(tmp_path, killed_after):
    process = start_python("-c", WRITER, folder=tmp_path)
    try:
        done = [int(process.stdout.readline()) for _ in range(killed_after)]
    finally:
        process.kill()
    done += [int(line) for line in process.communicate()[0].split()]
    assert process.returncode == -signal.SIGKILL
    cache = SemanticCache(str(tmp_path / "cache"), size=4)
    for number in done[-3:]:  # the fourth may have left for one whose put did not return
        assert cache.get(f"What is the code of door {number}?") == f"answer {number}"
    cache.put("one more", "answer")
    assert len(cache.retriever) <= 4


@pytest.mark.parametrize("suffix", ["export", "pair_model", "index/manifest.json"])
def test_a_kill_while_it_is_made_leaves_a_folder_to_go_on_with(tmp_path, suffix):
    with killed_at(0, suffix) as renamed:
        SemanticCache(str(tmp_path))
    assert len(renamed) == 1
    cache = SemanticCache(str(tmp_path))
    cache.put(ASKED, "answer")
    assert cache.get(ASKED) == "answer"


def test_an_encoder_is_chosen_by_the_folder(tmp_path, cache):
    assert isinstance(cache.retriever.pair_model, PlainModel)
    semantic_cache.Retriever.load("open_student").save(tmp_path / "fast")
    other = SemanticCache(str(tmp_path / "fast"))
    other.put(ASKED, "answer")
    assert other.get("how do i turn on the dark mode") == "answer"
    assert other.get("how do i turn off the dark mode") is None
