"""BM25 retrieval: scores against the formula, order, cache on disk, and the small real sets."""

import json
import math
import re
import threading
from collections import Counter

import pytest

from lit_treerl.retrieval.base import Passage, passage_from_row
from lit_treerl.retrieval.bm25 import BM25Retriever
from lit_treerl.retrieval.corpus import read_corpus
from lit_treerl.retrieval.index_cache import default_cache

TEXTS = ["a cat sat on the mat", "the dog sat", "Malcolm X and a dog", "Malcolm Y and a dog", "dog dog dog", "fish"]
ROWS = [{"id": f"p{i}", "title": "", "text": text} for i, text in enumerate(TEXTS)]


def slow_bm25(query: str, texts: list[str], k1: float = 1.5, b: float = 0.75) -> list[float]:
    """The Lucene form: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), tf / (tf + k1 (1 - b + b length / mean length))."""
    docs = [Counter(re.findall(r"\w+", text.lower())) for text in texts]
    mean = sum(sum(doc.values()) for doc in docs) / len(docs)
    scores = [0.0] * len(docs)
    for word in re.findall(r"\w+", query.lower()):
        n = sum(word in doc for doc in docs)
        idf = math.log(1 + (len(docs) - n + 0.5) / (n + 0.5))
        for i, doc in enumerate(docs):
            scores[i] += idf * doc[word] / (doc[word] + k1 * (1 - b + b * sum(doc.values()) / mean))
    return scores


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("backend", ["numpy", "numba"])
@pytest.mark.parametrize("query", ["dog", "the dog sat", "Malcolm X", "dog dog cat", "mat fish zebra"])
def test_scores_and_order_equal_the_formula(backend, query):
    retriever = BM25Retriever.from_rows(ROWS, stopwords="none", backend=backend)
    [found] = retriever.search([query], topk=len(TEXTS))
    scores = slow_bm25(query, TEXTS)
    expected = sorted((i for i, score in enumerate(scores) if score > 0), key=lambda i: (-round(scores[i], 5), i))
    assert [passage.id for passage in found] == [f"p{i}" for i in expected]
    assert [passage.score for passage in found] == pytest.approx([scores[i] for i in expected], rel=1e-5)


def test_parameters_of_the_formula_are_passed_on():
    retriever = BM25Retriever.from_rows(ROWS, stopwords="none", k1=0.9, b=0.4)
    [[best]] = retriever.search(["dog"], topk=1)
    assert best.score == pytest.approx(max(slow_bm25("dog", TEXTS, 0.9, 0.4)), rel=1e-5)


def test_passages_that_share_no_word_are_never_padding():
    retriever = BM25Retriever.from_rows(ROWS)
    assert [len(found) for found in retriever.search(["fish", "zebra", "", "?!", "the"], topk=3)] == [1, 0, 0, 0, 0]


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_ties_keep_the_order_of_the_corpus_at_every_cut(backend):
    rows = [{"id": str(i), "contents": "red fish" if i % 2 else "blue fish"} for i in range(50)]
    retriever = BM25Retriever.from_rows(rows, backend=backend)
    for topk in (1, 3, 25, 60):
        [found] = retriever.search(["red"], topk)
        assert [passage.id for passage in found] == [str(i) for i in range(1, 50, 2)][:topk]


def test_one_letter_words_and_stop_words():
    [[first, *_]] = BM25Retriever.from_rows(ROWS).search(["Malcolm X"], topk=2)
    assert first.text == "Malcolm X and a dog"
    assert BM25Retriever.from_rows(ROWS, stopwords="none").search(["the"], topk=9)[0][0].id == "p1"
    assert BM25Retriever.from_rows(ROWS, stopwords="english").search(["the"], topk=9) == [[]]


def test_titles_are_searched_too():
    rows = [{"id": "0", "contents": '"Ada Lovelace"\nShe wrote programs.'}, {"id": "1", "contents": "Lovelace alone"}]
    [found] = BM25Retriever.from_rows(rows).search(["Ada"], topk=2)
    assert [(p.id, p.title, p.text) for p in found] == [("0", "Ada Lovelace", "She wrote programs.")]


def test_results_are_the_callers_own():
    retriever = BM25Retriever.from_rows(ROWS)
    retriever.search(["dog"], 2)[0].clear()
    assert len(retriever.search(["dog"], 2)[0]) == 2


@pytest.mark.parametrize(
    ("row", "passage"),
    [
        ({"id": 7, "contents": '"T"\nx\ny'}, Passage("7", "T", "x\ny")),
        ({"id": "a", "contents": "no title"}, Passage("a", "", "no title")),
        ({"title": "T", "text": "x"}, Passage("", "T", "x")),
        ({"id": "a", "title": None, "text": "x"}, Passage("a", "", "x")),
        ({"id": "a", "title": "T", "contents": '"Other"\nx'}, Passage("a", "T", "x")),
    ],
)
def test_forms_of_passages(row, passage):
    assert passage_from_row(row) == passage


@pytest.mark.parametrize("line", ['{"id": "1"}', "[1]", "{", '{"id": "1", "contents": 3}', '{"title": 3, "text": "x"}'])
def test_a_broken_corpus_names_file_and_line(tmp_path, line):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": "0", "contents": "x"}\n\n' + line + "\n")
    with pytest.raises(ValueError, match=r"corpus\.jsonl, line 3: "):
        list(read_corpus(path))


def test_unusable_corpora_and_settings_are_named(tmp_path):
    with pytest.raises(ValueError, match="set 'corpus' to a JSONL file"):
        BM25Retriever().setup()
    with pytest.raises(FileNotFoundError, match="no corpus at nowhere"):
        BM25Retriever("nowhere").setup()
    with pytest.raises(ValueError, match=r"c\.jsonl: the corpus has no passages"):
        BM25Retriever(write(tmp_path / "c.jsonl", []), str(tmp_path)).setup()
    with pytest.raises(ValueError, match="no passage of the corpus has a word"):
        BM25Retriever.from_rows([{"id": "0", "contents": "the ?"}]).setup()
    with pytest.raises(ValueError, match="'auto', 'numba' or 'numpy'"):
        BM25Retriever(backend="gpu")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'english' or 'none'"):
        BM25Retriever(stopwords="german")  # type: ignore[arg-type]


def indexes(cache):
    return sorted(path.name for path in cache.iterdir())


@pytest.mark.parametrize("backend", ["numpy", "numba"])
def test_an_index_on_disk_answers_like_one_in_memory(tmp_path, backend):
    rows = [*ROWS, {"id": "ü", "contents": '"Zürich"\nA dog\u2028in Zürich'}]
    corpus = write(tmp_path / "c.jsonl", rows)
    queries = ["dog", "zürich", "Malcolm X", "zebra"]
    memory = BM25Retriever.from_rows(rows).search(queries, 3)
    for _ in range(2):  # built, then opened
        assert BM25Retriever(corpus, str(tmp_path / "cache"), backend).search(queries, 3) == memory
    assert len(indexes(tmp_path / "cache")) == 1  # and nothing half-built is left


def test_the_cache_goes_by_content_and_settings(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TREERL_CACHE", str(tmp_path / "cache"))
    assert default_cache() == tmp_path / "cache"
    first, copy = write(tmp_path / "a.jsonl", ROWS), write(tmp_path / "b.jsonl", ROWS)
    for retriever in (BM25Retriever(first), BM25Retriever(copy), BM25Retriever(first, cache_size=5)):
        retriever.setup()
    assert len(indexes(tmp_path / "cache")) == 1
    BM25Retriever(first, stopwords="none").setup()
    assert len(indexes(tmp_path / "cache")) == 2
    write(tmp_path / "a.jsonl", [{"id": "new", "contents": "a new dog"}])
    assert BM25Retriever(first).search(["dog"], 3)[0][0].id == "new"
    assert len(indexes(tmp_path / "cache")) == 3


@pytest.mark.parametrize("name", ["data.csc.index.npy", "corpus.jsonl", "vocab.index.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_damaged_index_is_built_again(tmp_path, caplog, name, damage):
    corpus, cache = write(tmp_path / "c.jsonl", ROWS), tmp_path / "cache"
    expected = BM25Retriever(corpus, str(cache)).search(["dog"], 3)
    [folder] = cache.iterdir()
    file = folder / name
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-5])
    else:
        file.unlink()
    assert BM25Retriever(corpus, str(cache)).search(["dog"], 3) == expected
    assert "is damaged" in caplog.text
    caplog.clear()
    assert BM25Retriever(corpus, str(cache)).search(["dog"], 3) == expected
    assert "is damaged" not in caplog.text


def test_threads_get_their_own_answers(tmp_path):
    rows = [{"id": str(i), "contents": f'"T{i}"\nword{i} common'} for i in range(200)]
    retriever = BM25Retriever(write(tmp_path / "c.jsonl", rows), str(tmp_path / "cache"), cache_size=1)
    retriever.setup()
    wrong = []

    def ask(first):
        for i in range(first, 200, 4):
            if [passage.id for passage in retriever.search([f"word{i}"], 1)[0]] != [str(i)]:
                wrong.append(i)

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
