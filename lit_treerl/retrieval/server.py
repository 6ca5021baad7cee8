"""A small retrieval server over BM25: ``python -m lit_treerl.retrieval.server --corpus passages.jsonl``."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from lit_treerl.retrieval.base import Passage, Retriever
from lit_treerl.retrieval.bm25 import BM25Retriever


def make_server(retriever: Retriever, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """A server for ``POST /retrieve``, bound but not yet serving.

    Args:
        retriever: set up already; used from several threads.
        host: address to bind.
        port: 0 takes a free one, to be read from ``server_address``.
    """
    handler = type("RetrieveHandler", (_Handler,), {"retriever": retriever})
    return ThreadingHTTPServer((host, port), handler)


class _Handler(BaseHTTPRequestHandler):
    retriever: Retriever
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a ``/retrieve`` request."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path.rstrip("/") != "/retrieve":
            return self._reply(404, {"error": f"no {self.path}; ask /retrieve"})
        try:
            queries, topk, scores = _read_question(json.loads(body))
        except ValueError as error:
            return self._reply(400, {"error": str(error)})
        found = self.retriever.search(queries, topk)
        return self._reply(200, {"result": [[_item(passage, scores) for passage in list_] for list_ in found]})

    def _reply(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Keep the console quiet."""


def _read_question(question: Any) -> tuple[list[str], int, bool]:
    queries = question.get("queries") if isinstance(question, dict) else None
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise ValueError("'queries' must be a list of strings")
    topk = question.get("topk")
    topk = 3 if topk is None else topk
    if not isinstance(topk, int) or topk < 1:
        raise ValueError(f"'topk' must be a positive whole number, not {topk!r}")
    return queries, topk, bool(question.get("return_scores"))


def _item(passage: Passage, with_score: bool) -> dict[str, Any]:
    contents = f'"{passage.title}"\n{passage.text}' if passage.title or "\n" in passage.text else passage.text
    document = {"id": passage.id, "contents": contents}
    return {"document": document, "score": passage.score} if with_score else document


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted; the first line printed is the address."""
    parser = argparse.ArgumentParser(prog="python -m lit_treerl.retrieval.server", description=__doc__)
    parser.add_argument("--corpus", required=True, help="JSONL file of passages")
    parser.add_argument("--host", default="127.0.0.1", help="address to bind (default: %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port (default)")
    parser.add_argument("--index-dir", help="folder for the index")
    parser.add_argument("--stopwords", default="english", choices=["english", "none"])
    chosen = parser.parse_args(arguments)
    retriever = BM25Retriever(chosen.corpus, chosen.index_dir, stopwords=chosen.stopwords)
    retriever.setup()
    with make_server(retriever, chosen.host, chosen.port) as server:
        print(f"http://{chosen.host}:{server.server_address[1]}/retrieve", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    main()
