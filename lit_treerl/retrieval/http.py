"""Client of a retrieval server that speaks ``POST /retrieve``, as Search-R1 and Tree-GRPO use it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lit_treerl.envs.base import EnvironmentFailure
from lit_treerl.retrieval.base import Passage, Retriever, passage_from_row

if TYPE_CHECKING:
    import httpx


class _Transient(Exception):
    """Trouble that may pass; its text holds no address and so no credentials."""


class HTTPRetriever(Retriever):
    """Asks a server: ``{"queries", "topk", "return_scores"}`` -> ``{"result": [[{"document", "score"}]]}``.

    Bare documents in place of scored ones, and a plain string in place of a query's list, are understood too.
    Time-outs, connection errors and answers of 500 and above are tried again with growing waits; what remains, and
    every other trouble, is an ``EnvironmentFailure`` that never becomes a reward.

    Args:
        url: full address of the endpoint.
        timeout: seconds to wait for one answer.
        attempts: tries in all.
        backoff: seconds before the second try; doubles with each further one.
        backoff_max: longest wait between tries, in seconds.
        headers_env: header name -> environment variable that holds its value, for tokens that no config should hold.
    """

    blocking = True

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000/retrieve",
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.5,
        backoff_max: float = 10.0,
        headers_env: dict[str, str] | None = None,
    ) -> None:
        if attempts < 1:
            raise ValueError(f"attempts is {attempts}; it must be at least 1")
        self.url, self.timeout = url, timeout
        self.attempts, self.backoff, self.backoff_max = attempts, backoff, backoff_max
        self.headers_env = headers_env or {}
        self._client: httpx.Client | None = None

    def setup(self) -> None:
        """Open the connection pool.

        Raises:
            ValueError: for an address that is none, or an environment variable that is not set.
        """
        import httpx

        if self._client is not None:
            return
        if httpx.URL(self.url).scheme not in ("http", "https"):
            raise ValueError(f"{self._address()!r} is no http address; write it like http://host:8000/retrieve")
        missing = sorted(name for name in self.headers_env.values() if name not in os.environ)
        if missing:
            raise ValueError(f"headers_env names environment variables that are not set: {', '.join(missing)}")
        headers = {header: os.environ[name] for header, name in self.headers_env.items()}
        self._client = httpx.Client(timeout=self.timeout, headers=headers)

    def close(self) -> None:
        """Close the connection pool."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def search(self, queries: Sequence[str], topk: int) -> list[list[Passage]]:
        """Ask for all ``queries`` at once.

        Raises:
            EnvironmentFailure: naming the server and its last error.
        """
        if not queries:
            return []
        self.setup()
        try:
            return _read_answer(
                self._ask({"queries": list(queries), "topk": topk, "return_scores": True}), queries, topk
            )
        except (_Transient, ValueError) as error:
            raise EnvironmentFailure(f"retrieval server {self._address()}: {error}") from None

    def _ask(self, question: dict[str, Any]) -> Any:
        import stamina

        retry = stamina.retry_context(
            on=_Transient,
            attempts=self.attempts,
            timeout=None,
            wait_initial=self.backoff,
            wait_max=self.backoff_max,
            wait_jitter=self.backoff / 2,
        )
        for attempt in retry:
            with attempt:
                return self._ask_once(question)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _ask_once(self, question: dict[str, Any]) -> Any:
        import httpx

        assert self._client is not None
        try:
            response = self._client.post(self.url, json=question)
        except httpx.TimeoutException:
            raise _Transient(f"no answer within {self.timeout} s") from None
        except httpx.TransportError as error:
            raise _Transient(f"{type(error).__name__}: {error}") from None
        if response.status_code >= 500:
            raise _Transient(f"answered with status {response.status_code}")
        if response.status_code != 200:
            raise ValueError(f"answered with status {response.status_code}")
        try:
            return response.json()
        except ValueError:
            raise ValueError(f"answered with something that is not JSON: {response.text[:80]!r}") from None

    def _address(self) -> str:
        """The URL without user, password and query, which may hold secrets."""
        import httpx

        return str(httpx.URL(self.url).copy_with(userinfo=b"", query=None, fragment=None))


def _read_answer(answer: Any, queries: Sequence[str], topk: int) -> list[list[Passage]]:
    result = answer.get("result") if isinstance(answer, Mapping) else None
    if not isinstance(result, list):
        raise ValueError("answered without a list 'result'")
    if len(result) != len(queries):
        raise ValueError(f"answered {len(result)} queries of {len(queries)}")
    return [_read_passages(found, topk) for found in result]


def _read_passages(found: Any, topk: int) -> list[Passage]:
    if isinstance(found, str):
        return [Passage("", "", found)] if found.strip() else []
    if not isinstance(found, list):
        raise ValueError(f"a query's result must be a list or a string, not {type(found).__name__}")
    return [_read_passage(item) for item in found[:topk]]


def _read_passage(item: Any) -> Passage:
    if isinstance(item, str):
        return Passage("", "", item)
    document = item.get("document", item) if isinstance(item, Mapping) else None
    if isinstance(document, str):
        document = {"contents": document}
    if not isinstance(document, Mapping):
        raise ValueError(f"a passage must be an object, not {type(item).__name__}")
    score = item.get("score")
    return passage_from_row(document, float(score) if isinstance(score, int | float) else 0.0)
