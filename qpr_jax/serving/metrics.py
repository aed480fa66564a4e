"""What `/metrics` reports."""

from __future__ import annotations

import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_fastapi_instrumentator import Instrumentator
from prometheus_fastapi_instrumentator.metrics import latency, requests

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class ServerMetrics:
    """The metrics of one application.

    Several workers that share a folder `$PROMETHEUS_MULTIPROC_DIR` report their sums, and the
    newest value of each gauge.
    """

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        gauge = functools.partial(Gauge, registry=registry, multiprocess_mode="mostrecent")
        self.questions = gauge("qpr_questions", "Indexed questions.")
        self.ready = gauge("qpr_ready", "1 if the server can search, else 0.")
        self.batches = Histogram(
            "qpr_batch_queries", "Queries of a batch.", buckets=_SIZES, registry=registry
        )
        self.reloads = Counter(
            "qpr_reloads", "Reloads of the index: ok or failed.", ["result"], registry=registry
        )
        for result in ("ok", "failed"):  # so that an alert sees the first failure
            self.reloads.labels(result)

    def instrumentator(self) -> Instrumentator:
        """Return what counts and times the requests."""
        found = Instrumentator(should_group_status_codes=False, registry=self.registry)
        count = requests("qpr_requests_total", "Requests answered.", registry=self.registry)
        seconds = latency(
            "qpr_request_seconds",
            "Time to answer.",
            should_include_status=False,
            buckets=_SECONDS,
            registry=self.registry,
        )
        return found.add(count, seconds)
