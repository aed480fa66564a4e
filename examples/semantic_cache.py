"""A semantic cache: the answer to a question that was asked in other words."""

import pathlib
import threading
import time
from collections import Counter, deque
from typing import Any

import numpy as np

from qpr_jax import Retriever
from qpr_jax.text.cleaning import number_key


class SemanticCache:
    """Answers in a folder, each for `ttl` seconds; of `size` the least recently used leaves."""

    def __init__(self, folder: str, threshold: float = 0.99, ttl: float = 86_400, size: int = 1000):
        if not (0 <= threshold <= 1 and ttl > 0 and size >= 1 and isinstance(size, int)):
            raise ValueError("expected a threshold from 0 to 1, a ttl above 0, a size from 1 on")
        if not pathlib.Path(folder, "index/manifest.json").exists():
            Retriever.load("minilm").save(folder)
        self.retriever, self.lock = Retriever.load(folder), threading.Lock()
        self.threshold, self.ttl, self.size = threshold, ttl, size
        self.counts, self.near_misses = Counter[str](), deque[tuple[str, str, float]](maxlen=100)
        self.times: dict[Any, Any] = {e.id: (e.payload or {})["time"] for e in self.retriever}

    def best(self, question: str) -> tuple[float, Any]:
        found: list[Any] = self.retriever.search(question, k=20)[0]
        hits = [hit for hit in found if hit.payload["time"] > time.time() - self.ttl]
        model, distances = self.retriever.pair_model, [hit.distance for hit in hits]
        alone = model.spreads(np.full(len(hits), np.nan))  # as a pair of a table: more guards
        pairs = [question] * len(hits), [hit.question for hit in hits]
        same = [number_key(question) == number_key(text) for text in pairs[1]]
        scores = (same / (1 + np.exp(-model.logits(*pairs, np.array(distances), alone)))).tolist()
        return max(zip(scores, hits, strict=True), key=lambda pair: pair[0], default=(0.0, None))

    def get(self, question: str) -> Any:
        score, hit = self.best(question)
        with self.lock:
            found = score >= self.threshold and hit.id in self.times
            self.counts["hits" if found else "misses"] += 1
            if found:
                self.times[hit.id] = self.times.pop(hit.id)
            elif hit and hit.close:
                self.near_misses.append((question, hit.question, score))
        return hit.payload["answer"] if found else None

    def put(self, question: str, answer: Any) -> None:
        with self.lock:
            now, found = time.time(), self.retriever.search(question, k=20)[0]
            copies = [hit.id for hit in found if hit.score == 1]
            new: Any = self.retriever.add([question], payload=[{"answer": answer, "time": now}])[0]
            times = self.times | {new: now}
            fresh = [id for id, at in times.items() if at > now - self.ttl and id not in copies]
            self.retriever.remove(self.times.keys() - fresh[-self.size :], ignore_missing=True)
            self.times = {id: times[id] for id in fresh[-self.size :]}
            if new % self.size == 0:
                self.retriever.compact()  # frees the room of what left
