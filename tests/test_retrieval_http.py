"""The /retrieve protocol over real sockets: our server, and servers that misbehave."""

import json
import logging
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest

from lit_treerl.envs.base import EnvironmentFailure
from lit_treerl.retrieval.base import Passage
from lit_treerl.retrieval.bm25 import BM25Retriever
from lit_treerl.retrieval.http import HTTPRetriever
from lit_treerl.retrieval.server import make_server

ROWS = [
    {"id": "0", "contents": '"Ada"\nAda wrote a program.'},
    {"id": "1", "contents": "Charles built\nan engine."},
    {"id": "2", "contents": '"Engine"\nAn engine is a machine.'},
]


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/retrieve"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def scripted(*answers):
    """A server that gives ``answers`` in turn, the last one again and again; yields (url, questions)."""
    questions, over = [], threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = answers[min(len(questions), len(answers) - 1)]
            questions.append((dict(self.headers), json.loads(body)))
            if answer == "slow":
                over.wait(30)
                return
            if answer == "hang up":
                self.close_connection = True
                return
            status, text = answer if isinstance(answer, tuple) else (200, json.dumps(answer))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with serving(server) as url:
        try:
            yield url, questions
        finally:
            over.set()


def client(url, **settings):
    return HTTPRetriever(url, **({"timeout": 5.0, "attempts": 3, "backoff": 0.001, "backoff_max": 0.002} | settings))


GOOD = {"result": [[{"document": {"id": "0", "contents": '"Ada"\nx'}, "score": 1.5}]]}
PASSAGE = Passage("0", "Ada", "x", 1.5)


def test_our_server_answers_like_its_retriever():
    local = BM25Retriever.from_rows(ROWS)
    local.setup()
    queries = ["engine", "Ada", "zebra"]
    with serving(make_server(local)) as url:
        remote = client(url)
        assert remote.search(queries, 2) == local.search(queries, 2)
        assert remote.search([], 2) == []
        assert remote.blocking
        remote.close()
        bare = httpx.post(url, json={"queries": ["Ada"], "topk": 1}).json()
        assert bare == {"result": [[ROWS[0]]]}
        assert httpx.post(url, content=b"{").status_code == 400
        assert httpx.post(url, json={"queries": "Ada"}).json() == {"error": "'queries' must be a list of strings"}
        assert httpx.post(url, json={"queries": [], "topk": 0}).status_code == 400
        assert httpx.post(url + "r", json={"queries": []}).status_code == 404


def test_the_question_follows_the_protocol():
    with scripted(GOOD) as (url, questions):
        client(url).search(["a"], 4)
    assert questions[0][1] == {"queries": ["a"], "topk": 4, "return_scores": True}


@pytest.mark.parametrize(
    ("result", "passages"),
    [
        ([{"document": {"id": "0", "contents": '"Ada"\nx'}, "score": 1.5}], [PASSAGE]),
        ([{"id": "0", "contents": '"Ada"\nx'}], [Passage("0", "Ada", "x")]),
        ([{"id": "0", "title": "Ada", "text": "x"}], [Passage("0", "Ada", "x")]),
        ([{"document": "x", "score": 2}], [Passage("", "", "x", 2.0)]),
        (["x", "y"], [Passage("", "", "x"), Passage("", "", "y")]),
        ("a page of text", [Passage("", "", "a page of text")]),
        (" ", []),
        ([], []),
        ([{"id": str(i), "contents": "x"} for i in range(9)], [Passage(str(i), "", "x") for i in range(2)]),
    ],
)
def test_forms_of_answers(result, passages):
    with scripted({"result": [result]}) as (url, _):
        assert client(url).search(["q"], 2) == [passages]


@pytest.mark.parametrize("trouble", [(500, "oops"), (503, ""), "hang up"])
def test_passing_trouble_is_tried_again(trouble):
    with scripted(trouble, trouble, GOOD) as (url, questions):
        assert client(url).search(["q"], 1) == [[PASSAGE]]
    assert len(questions) == 3


def test_lasting_trouble_becomes_a_labelled_failure():
    with (
        scripted((500, "oops")) as (url, questions),
        pytest.raises(EnvironmentFailure, match=r"retrieval server http://127\.0\.0\.1:\d+/retrieve: .* status 500"),
    ):
        client(url).search(["q"], 1)
    assert len(questions) == 3


def test_a_slow_answer_times_out_and_is_tried_again():
    with scripted("slow", GOOD) as (url, questions):
        assert client(url, timeout=0.2).search(["q"], 1) == [[PASSAGE]]
        assert len(questions) == 2
    with scripted("slow") as (url, _), pytest.raises(EnvironmentFailure, match=r"no answer within 0\.05 s"):
        client(url, timeout=0.05, attempts=2).search(["q"], 1)


def test_nobody_there():
    with scripted(GOOD) as (url, _):
        pass
    with pytest.raises(EnvironmentFailure, match="ConnectError"):
        client(url).search(["q"], 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((200, "<html>"), "not JSON: '<html>'"),
        ((404, "no"), "status 404"),
        ((401, "no"), "status 401"),
        ((302, ""), "status 302"),
        ([], "without a list 'result'"),
        ({"result": None}, "without a list 'result'"),
        ({"result": []}, "answered 0 queries of 1"),
        ({"result": [None]}, "must be a list or a string, not NoneType"),
        ({"result": [[3]]}, "must be an object, not int"),
        ({"result": [[{"id": "0"}]]}, "needs 'contents' or 'text'"),
        ({"result": [[{"document": {"contents": 3}}]]}, "needs 'contents' or 'text'"),
    ],
)
def test_garbage_fails_at_once(answer, message):
    with scripted(answer, GOOD) as (url, questions), pytest.raises(EnvironmentFailure, match=message):
        client(url).search(["q"], 1)
    assert len(questions) == 1


def test_secrets_come_from_the_environment_and_never_show(monkeypatch, caplog):
    caplog.set_level(logging.DEBUG, "stamina")
    monkeypatch.setenv("RETRIEVER_TOKEN", "Bearer hush")
    with scripted((500, "oops")) as (url, questions):
        address = url.replace("http://", "http://user:secret@") + "?key=secret"
        retriever = client(address, headers_env={"Authorization-Two": "RETRIEVER_TOKEN"})
        with pytest.raises(EnvironmentFailure) as failure:
            retriever.search(["q"], 1)
    assert questions[0][0]["Authorization-Two"] == "Bearer hush"
    assert str(failure.value).startswith(f"retrieval server {url}: ")
    assert "secret" not in str(failure.value) + caplog.text
    assert "hush" not in str(failure.value) + caplog.text


def test_bad_settings_are_named(monkeypatch):
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    with pytest.raises(ValueError, match="not set: NO_SUCH_TOKEN"):
        HTTPRetriever(headers_env={"X": "NO_SUCH_TOKEN"}).setup()
    with pytest.raises(ValueError, match="write it like http://host:8000/retrieve"):
        HTTPRetriever("localhost:8000").setup()
    with pytest.raises(ValueError, match="attempts is 0"):
        HTTPRetriever(attempts=0)


def test_the_server_command_prints_where_it_listens(tmp_path):
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    command = [
        sys.executable,
        "-m",
        "lit_treerl.retrieval.server",
        "--corpus",
        str(corpus),
        "--index-dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert client(url).search(["program"], 1)[0][0].title == "Ada"
        finally:
            process.terminate()
