"""A FastAPI application of your own around a retriever: similar questions, and new ones.

    pip install '.[serve]' -c constraints.txt
    qpr index my_index questions.csv
    QPR_INDEX=my_index uvicorn --app-dir examples --factory fastapi_app:make_app
    curl 'http://127.0.0.1:8000/similar?question=how+do+i+reset+my+password'

`qpr serve my_index` is a whole service, with limits, metrics, reloads and a page (docs/search.md).
Take this where the search is a part of an application: who may call it is the application's task.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException, Query, Request
from pydantic import BaseModel

from qpr_jax import Retriever, UserError


class Question(BaseModel):
    """What is asked, and the fields that a hit shall return with it."""

    text: str
    id: int | str | None = None
    payload: dict[str, Any] | None = None


@asynccontextmanager
async def load(app: FastAPI) -> AsyncIterator[None]:
    """Load the index once, and compute what the first search would wait for."""
    app.state.retriever = Retriever.load(os.environ["QPR_INDEX"])
    app.state.retriever.search(["warm up"])
    yield


def make_app() -> FastAPI:
    """FastAPI runs functions without `async` in threads, and a retriever is safe in them."""
    app = FastAPI(lifespan=load)

    @app.get("/similar")
    def similar(request: Request, question: str, k: int = Query(5, ge=1, le=50)) -> list[Any]:
        hits = request.app.state.retriever.search([question], k=k)[0]
        return [hit._asdict() for hit in hits]

    @app.post("/questions", status_code=201)
    def add(request: Request, new: Question) -> int | str:
        ids = None if new.id is None else [new.id]
        try:
            return request.app.state.retriever.add([new.text], ids=ids, payload=[new.payload])[0]
        except UserError as error:  # the caller's mistake, in one line
            raise HTTPException(422, str(error)) from None

    return app
