"""docs/real_data.md is true: its commands build, its rows load, and the run on a laptop goes through."""

import csv
import inspect
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from doc_commands import ROOT, Command, blocks, commands, enter, lit_treerl, run
from lit_treerl.data.rows import task_from_row
from lit_treerl.envs.search_qa import SearchQA
from lit_treerl.retrieval.base import passage_from_row
from lit_treerl.retrieval.http import HTTPRetriever
from runs import built
from tiny_models import save_tiny_policy

PAGE = ROOT / "docs/real_data.md"
SHARED = Path(os.environ.get("LIT_TREERL_SHARED_DATA") or ROOT.parent / "shared/data")
OURS = "models/SmolLM2-135M-Instruct"  # the laptop's command names this folder
TINY = [
    *("--env.prompt_template", "Now {question}", "--rollout.limits.max_context", "512"),
    *("--rollout.limits.max_new_tokens", "12", "--rollout.limits.max_observation_tokens", "64"),
    *("--model.actor_lr", "1e-3", "--model.loss.entropy_coef", "0.1"),  # a random policy earns nothing, yet must move
    *("--trainer.check_val_every_n_epoch", "1", "--trainer.enable_progress_bar", "false"),
]
FITS = [command for command in lit_treerl(PAGE) if command.words[1] == "fit"]
pytestmark = pytest.mark.filterwarnings("ignore")


# ---- the page ----


def settings(monkeypatch, command: Command) -> dict:
    return built(monkeypatch, *command.words[1:], "--trainer.accelerator", "cpu").config[command.words[1]].as_dict()


@pytest.mark.parametrize("command", FITS, ids=lambda command: command.where)
def test_fit_commands_build(command, tmp_path, monkeypatch):
    """Whole, with nothing of the embedded world left."""
    enter(tmp_path, monkeypatch)
    found = settings(monkeypatch, command)
    model = found["model"]["init_args"]
    assert model["policy"] == command.option("model.policy") or model["policy"] == "Qwen/Qwen2.5-1.5B-Instruct"
    assert model["actor_lr"] <= 1e-5
    assert found["threads"] is None
    assert found["rollout"]["limits"]["max_context"] >= 2048
    sources = [found["data"]["init_args"][split]["class_path"] for split in ("train", "validation", "test")]
    classes = [found["env"]["init_args"]["retriever"]["class_path"], *sources]
    assert [name for name in classes if "mbedded" in name] == []
    for name in ("prompt_template", "passage_format", "joiner", "lead", "padding", "trail", "correction"):
        assert found["env"]["init_args"][name] == inspect.signature(SearchQA).parameters[name].default, name


def test_rows_of_the_page_load():
    rows = [[json.loads(line) for line in text.splitlines()] for _, text in blocks(PAGE, "json")]
    plain, own_prompt, passages = rows
    assert [task_from_row(row, "train").answers for row in plain] == [("Stanislaw Lem",), ("Lwow", "Lviv")]
    assert [task_from_row(row, "train").data_source for row in plain] == ["train", "hotpotqa"]
    (task,) = [task_from_row(row, "train") for row in own_prompt]
    assert task.answers == ("Stanislaw Lem",)
    assert task.prompt
    assert task.prompt[0]["content"].endswith("Who wrote Solaris?")
    assert [passage_from_row(row).title for row in passages] == ["Solaris (novel)", "Stanislaw Lem"]


def test_server_answers_the_http_retriever(tmp_path):
    (command,) = commands(PAGE, "python")
    passages = [text for _, text in blocks(PAGE, "json")][2]
    (tmp_path / "passages.jsonl").write_text(passages)
    words = [sys.executable, *command.words[1:-1], "0", "--index-dir", str(tmp_path / "index")]  # any free port
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            retriever = HTTPRetriever(server.stdout.readline().strip())
            (found,) = retriever.search(["where was Stanislaw Lem born"], topk=3)
            retriever.close()
        finally:
            server.terminate()
    assert [passage.title for passage in found] == ["Stanislaw Lem", "Solaris (novel)"]


# ---- the published settings ----

PUBLISHED = {  # docs/method.md
    "tree_grpo_qa": {"tasks": 512, "mini_batch": 64, "steps": 180, "turns": 3, "lengths": (500, 4096 + 500, 500)},
    "tree_grpo_web": {"tasks": 128, "mini_batch": 64, "steps": 34, "turns": 5, "lengths": (2000, 8000 + 2000, 1000)},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_settings(name, tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    found = built(monkeypatch, "fit", "--config", f"configs/paper/{name}.yaml", "--trainer.accelerator", "cpu")
    found, want = found.config.fit.as_dict(), PUBLISHED[name]
    model, env, limits = found["model"]["init_args"], found["env"]["init_args"], found["rollout"]["limits"]
    tasks = found["data"]["init_args"]["tasks_per_iteration"]
    assert tasks == want["tasks"]
    assert tasks / model["update"]["mini_batches"] == want["mini_batch"]
    assert found["trainer"]["max_epochs"] == want["steps"]
    assert env["max_turns"] == want["turns"]
    assert env["topk"] == 3
    assert "HTTPRetriever" in env["retriever"]["class_path"]
    assert (limits["max_new_tokens"], limits["max_context"], limits["max_observation_tokens"]) == want["lengths"]
    assert [found["search"][key] for key in ("trees", "expansions", "rounds")] == [2, 2, 1]
    assert found["rollout"]["temperature"] == 1.0
    loss, algorithm = model["loss"], model["algorithm"]["init_args"]
    assert (loss["clip_low"], loss["clip_high"], loss["dual_clip"], loss["log_ratio_clamp"]) == (0.2, 0.2, 3.0, 20.0)
    assert (loss["kl_coef"], loss["entropy_coef"], loss["importance_cap"]) == (0.001, 0.001, None)
    assert (algorithm["level"], algorithm["normalisation"], algorithm["singletons"]) == (
        "both",
        "group_std",
        "published",
    )
    assert model["actor_lr"] == 1e-6
    warm_up = model["optimizer"]["schedule"]["warmup_steps"]
    assert warm_up == (round(0.285 * 180 * 8) if name == "tree_grpo_qa" else 0)


# ---- the whole of it ----


def write_data(folder: Path) -> None:
    """The small HotpotQA set where it is at hand, else six rows of our own, under the page's file names."""
    questions, passages = SHARED / "ircot_hotpotqa_qa.jsonl", SHARED / "ircot_hotpotqa_corpus.jsonl"
    if questions.is_file() and passages.is_file():
        rows, corpus = questions.read_text().splitlines(), passages.read_text()
    else:
        works = ("Solaris", "Emma", "Ulysses", "Dune", "Hamlet", "Faust")
        rows = [json.dumps({"question": f"Who wrote {work}?", "answer": f"author {work}"}) for work in works]
        texts = [{"id": work, "contents": f'"{work}"\n{work} was written by author {work}.'} for work in works]
        corpus = "".join(json.dumps(text) + "\n" for text in texts)
    (folder / "passages.jsonl").write_text(corpus)
    for name, some in (("train", rows[:4]), ("dev", rows[4:6]), ("test", rows[3:6])):
        (folder / f"{name}.jsonl").write_text("\n".join(some) + "\n")


def in_a_process_of_its_own(args) -> None:
    subprocess.run([sys.executable, "-c", "from lit_treerl.cli import main; main()", *args], check=True, timeout=900)


VLLM = pytest.param(
    ["VLLMSampler", "--sampler.kv_cache_memory_bytes", str(64 << 20)],
    in_a_process_of_its_own,  # the engine owns its process group
    marks=[pytest.mark.slow, pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")],
    id="vllm",
)


@pytest.mark.parametrize(("sampler", "start"), [pytest.param(["TransformersSampler"], run, id="transformers"), VLLM])
def test_laptop_run_goes_through(sampler, start, tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    write_data(tmp_path)
    save_tiny_policy(OURS)
    (command,) = [c for c in FITS if c.option("model.policy") == OURS]
    start([*command.words[1:], *TINY, "--sampler", *sampler])
    folder = tmp_path / "runs/tree_grpo/version_0"
    with (folder / "metrics.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
    assert [row["epoch"] for row in rows if "val/em" in row] == [-1, 0, 1]
    iterations = [row for row in rows if "train/reward" in row]
    assert len(iterations) == 2
    for row in iterations:
        assert row["rollout/leaves"] == 4 * 6
        assert row["rollout/failed"] == row["train/skipped_steps"] == 0
        assert row["train/sampler_gap"] < 1e-4  # in the second iteration: the new weights have reached the sampler
        assert row["train/grad_norm_actor"] > 0
        assert 0 < row["rollout/cached_tokens"] < row["rollout/prompt_tokens"]
        assert row["rollout/sampled_tokens"] > 0
    assert yaml.safe_load((folder / "config.yaml").read_text())["env"]["init_args"]["max_turns"] == 2
    test, predict = [c for c in lit_treerl(PAGE) if c.words[1] in ("test", "predict")]
    start([word.replace("runs/mine", "runs/tree_grpo") for word in test.words[1:]])
    results = json.loads((tmp_path / "runs/tree_grpo/version_1/test_results.json").read_text())
    assert results["all"]["episodes"] == 3
    assert results["all"]["turns"] == 3  # two with the tool, one to answer: a random policy uses them all
    start([word.replace("runs/mine", "runs/tree_grpo") for word in predict.words[1:]])
    episodes = (tmp_path / "runs/tree_grpo/version_2/episodes.jsonl").read_text().splitlines()
    assert [len(json.loads(line)["turns"]) for line in episodes] == [3, 3, 3]
