"""The documents say what is true: commands build, code runs, links lead somewhere, names are the real ones."""

from __future__ import annotations

import csv
import doctest
import importlib
import re
import runpy
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import yaml

from doc_commands import ROOT, SMALL, blocks, build, commands, enter, lit_treerl, run, small

DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*DOCS, *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]
CONFIGS = sorted((ROOT / "configs").rglob("*.yaml"))
RUN_FOR_REAL = ("architecture.md", "embedded_world.md", "real_data.md")  # below or in a file of their own
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
KEY_ROW = re.compile(r"^\| `([\w./]+)` \| ?([^|]*?) ?\|", re.MULTILINE)


def by_name(path: Path) -> str:
    return str(path.relative_to(ROOT))


# ---- commands and code ----


def write_modules(page: Path, folder: Path) -> list[str]:
    """Write the page's Python blocks that open with a file name; returns the names of the modules."""
    names = []
    for _, text in blocks(page, "python"):
        if match := re.match(r"# (\w+)\.py\n", text):
            (folder / f"{match[1]}.py").write_text(text)
            names.append(match[1])
    return names


@pytest.fixture
def page_folder(request, tmp_path, monkeypatch):
    """A folder to work in, from which the page's own modules can be imported."""
    enter(tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    names = write_modules(request.param, tmp_path)
    yield request.param, names
    for name in names:
        sys.modules.pop(name, None)


BUILT = [page for page in DOCS if lit_treerl(page) and page.name not in RUN_FOR_REAL]


@pytest.mark.parametrize("page_folder", BUILT, ids=by_name, indirect=True)
def test_commands_build(page_folder, monkeypatch, capsys):
    page, _ = page_folder
    for command in lit_treerl(page):
        try:
            build(command, monkeypatch)
        except SystemExit as end:
            printed = "--print_config" in command.words and not end.code
            assert printed, f"{command}\n{capsys.readouterr().err}"


@pytest.mark.parametrize("page_folder", [page for page in DOCS if blocks(page, "python")], ids=by_name, indirect=True)
def test_python_blocks_run(page_folder):
    page, names = page_folder
    namespace = {}
    for name in names:
        namespace |= vars(importlib.import_module(name))
    for line, text in blocks(page, "python"):
        if ">>>" in text:
            test = doctest.DocTestParser().get_doctest(text, namespace, page.name, str(page), line - 1)
            result = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
            assert result.attempted > result.failed == 0, f"{page.name}:{line}"
            namespace = test.globs
        else:
            exec(compile(text, f"{page}:{line}", "exec"), namespace)


def test_seed_policy_can_be_made_again(tmp_path, monkeypatch):
    """The commands of embedded_world.md, one after the other, on a few episodes."""
    enter(tmp_path, monkeypatch)
    page = ROOT / "docs/embedded_world.md"
    programs = [command.words[0] for command in commands(page)]
    assert programs == ["lit-treerl", "lit-treerl", "lit-treerl", "python", "lit-treerl"]
    for command in commands(page):
        if command.words[0] == "python":
            assert command.words[1:3] == ("-m", "lit_treerl.data.embedded")
            monkeypatch.setattr(sys, "argv", ["embedded", *command.words[3:], "--episodes", "8", "--worlds", "1000"])
            runpy.run_module(command.words[2], run_name="__main__")
        else:
            run(small(command))
    assert (tmp_path / "runs/sft/policy/model.safetensors").stat().st_size < 2_000_000
    assert len((tmp_path / "runs/demos.jsonl").read_text().splitlines()) == 8
    hops, policy = (yaml.safe_load((tmp_path / f"runs/tree_grpo/version_{i}/config.yaml").read_text()) for i in (0, 1))
    assert hops["data"]["init_args"]["train"]["init_args"]["hops"] == [2, 3, 4]
    assert policy["model"]["init_args"]["policy"] == "runs/sft/policy"


def test_architecture_examples_train(tmp_path, monkeypatch):
    """An environment and an estimator from outside the package, each for one iteration."""
    enter(tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    page = ROOT / "docs/architecture.md"
    assert write_modules(page, tmp_path) == ["mention", "median"]
    for number, command in enumerate(lit_treerl(page)):
        assert command.environment == (("PYTHONPATH", "."),)
        run(small(command))
        rows = read_metrics(tmp_path / f"runs/tree_grpo/version_{number}")
        assert rows[-1]["rollout/leaves"] == "12.0"
        if "mention.Mention" in command.words:
            assert rows[-1]["rollout/turns"] == "1.0"
    assert number == 1
    for name in ("mention", "median"):
        sys.modules.pop(name)


# ---- names ----


def read_metrics(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


CRITIC = "## Critic, value tree and budget"


def documented_names(text: str) -> set[str]:
    return {name for name, _ in KEY_ROW.findall(text) if "/" in name}


def logged_names(rows: list[dict[str, str]]) -> set[str]:
    """Names of the columns, without data sources and with LOW for a bin's lower end."""
    names = {re.sub(r"/\d\.\d$", "/LOW", name) for name in rows[0] if not re.search("/embedded_", name)}
    return names - {"epoch", "step"}


def test_metrics_page_names_what_is_logged(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)
    (command,) = lit_treerl(ROOT / "README.md")[:1]
    run(small(command))
    rows = read_metrics(tmp_path / "runs/tree_grpo/version_0")
    assert (rows[0]["epoch"], rows[1]["epoch"]) == ("-1", "0")
    assert float(rows[1]["train/kl"]) == 0
    before, critic, after = re.split(rf"^{CRITIC}$|^## Time$", (ROOT / "docs/metrics.md").read_text(), flags=re.M)
    assert logged_names(rows) == documented_names(before + after)

    run(["fit", "--config", "configs/tree_ppo.yaml", "--warmup.iterations", "1", *TWO_ITERATIONS])
    rows = read_metrics(tmp_path / "runs/tree_ppo/version_0")
    assert logged_names(rows) == documented_names(before + critic + after)
    warmup, policy = rows[1:]
    assert warmup["warmup/iterations"] == "1.0"
    assert warmup["warmup/explained_variance"] == warmup["train/explained_variance"]
    assert (policy["warmup/iterations"], policy["warmup/explained_variance"]) == ("", "")
    assert [float(row["train/grad_norm_actor"]) > 0 for row in (warmup, policy)] == [False, True]
    assert all(float(row["train/grad_norm_critic"]) > 0 for row in (warmup, policy))


def flat(settings: object, prefix: str = "") -> dict[str, object]:
    """Dotted keys as the command line has them, without ``init_args``."""
    if not isinstance(settings, dict) or not settings:
        return {prefix: settings}
    if "class_path" in settings:
        name = settings["class_path"].rpartition(".")[2]
        return {prefix: name} | {
            key: value for key, value in flat(settings.get("init_args") or {}, prefix).items() if key != prefix
        }
    out = {}
    for key, value in settings.items():
        out |= flat(value, f"{prefix}.{key}" if prefix else key)
    return out


def shown(capsys, *args: str) -> dict[str, object]:
    """The flattened settings that --print_config shows."""
    capsys.readouterr()
    with pytest.raises(SystemExit):
        run(["fit", *args, "--print_config"])
    settings = yaml.safe_load(capsys.readouterr().out)
    return {key: value for key, value in flat(settings).items() if not key.startswith("trainer")}


FEW = SMALL | {"data.tasks_per_iteration": "8", "data.train.n": "16", "trainer.max_epochs": "2"}
TWO_ITERATIONS = [word for name, value in FEW.items() for word in (f"--{name}", value)]

VARIANTS = [
    ["--env", "SearchQA"],
    ["--env", "SearchQA", "--env.retriever", "BM25Retriever", "--env.reward", "OutcomeReward"],
    ["--env", "SearchQA", "--env.retriever", "HTTPRetriever", "--sampler", "VLLMSampler"],
    ["--env", "SearchQA", "--env.retriever", "EmbeddedRetriever", "--sampler", "TransformersSampler"],
    ["--data.train", "JSONLTasks", "--data.train.path", "x.jsonl", "--model.algorithm", "TreeGRPO"],
    ["--data.train", "HFTasks", "--data.train.name_or_dir", "x"],
    ["--data.train", "EmbeddedTasks"],
    ["--data", "EpisodeDataModule"],
    ["--model", "LitSFT", "--data", "EpisodeDataModule", "--data.episodes", "EmbeddedDemonstrations"],
    ["--data", "EpisodeDataModule", "--data.episodes", "JSONLEpisodes", "--data.episodes.path", "x.jsonl"],
    ["--env", "ALFWorld", "--data.train", "AlfworldTasks"],
    ["--env", "WebShop", "--data.train", "WebShopTasks"],
    ["--env", "GymnasiumText", "--env.env", "x", "--data.train", "TextWorldTasks"],
    ["--env", "TextWorldGame"],
    ["--data", "EpisodeDataModule", "--data.episodes", "WebShopDemonstrations"],
    [
        *("--data", "EpisodeDataModule", "--data.episodes", "AlfworldDemonstrations"),
        *("--data.episodes.env", "ALFWorld", "--data.episodes.games", "AlfworldTasks"),
    ],
    ["--model.algorithm", "GRPO", "--budget", "CriticGuidedBudget"],
    ["--model.algorithm", "PPO"],
    ["--model.algorithm", "TreePPO", "--model.value_tree", "ValueTree"],
]


def test_configuration_page_names_the_keys_and_their_defaults(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    documented = dict(KEY_ROW.findall((ROOT / "docs/configuration.md").read_text()))
    found: dict[str, list[object]] = {}
    for arguments in VARIANTS:
        for key, value in shown(capsys, *arguments).items():
            if not key.startswith(("data.episodes.env.", "data.episodes.games.")):  # as env and data.train have them
                found.setdefault(key, []).append(value)
    classes = {"budget", "data", "env"}  # told in the text
    assert set(found) - set(documented) - classes == set()
    assert {key for key in documented if "." in key or key in found} - set(found) == set()
    for key, cell in documented.items():
        value = yaml.safe_load(cell.strip()) if key in found and cell.strip() else "prose"
        if not isinstance(value, str):
            assert any(value == other for other in found[key]), f"{key}: {cell} is not among {found[key]}"


# ---- links and configs ----


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page):
    for target in LINK.findall(page.read_text()):
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        other = (page.parent / path) if path else page
        assert other.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", other.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("config", CONFIGS, ids=by_name)
def test_configs_open_with_launch_line_and_hardware(config):
    opening = "\n".join(takewhile(lambda line: line.startswith("#"), config.read_text().splitlines()))
    assert "Hardware: " in opening
    assert f"configs/{config.relative_to(ROOT / 'configs')}" in opening


def test_grpo_differs_from_tree_grpo_in_search_and_estimator_alone(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    trees, chains = (shown(capsys, "--config", f"configs/{name}.yaml") for name in ("tree_grpo", "grpo"))
    differing = {key for key in trees.keys() | chains.keys() if trees.get(key) != chains.get(key)}
    assert differing == {"search.trees", "search.expansions", "model.algorithm", "model.algorithm.level"}
    assert (chains["search.trees"], chains["search.expansions"], chains["model.algorithm"]) == (4, 0, "GRPO")


def test_ppo_differs_from_tree_ppo_in_what_its_page_says_alone(tmp_path, monkeypatch, capsys):
    enter(tmp_path, monkeypatch)
    whole, plain = (shown(capsys, "--config", f"configs/{name}.yaml") for name in ("tree_ppo", "ppo"))
    pieces = ("model.value_tree", "search.", "budget")
    differing = {key for key in whole.keys() & plain.keys() if whole[key] != plain[key] and not key.startswith(pieces)}
    assert differing == {"model.algorithm"}
    assert (whole["model.algorithm"], plain["model.algorithm"]) == ("TreePPO", "PPO")
    assert (plain["model.value_tree"], plain["search.expansions"], plain["budget"]) == (None, 0, "UniformBudget")
    assert whole["model.value_tree"] == "ValueTree"
    assert whole["search.expansions"] > 0
    assert whole["budget"] == "CriticGuidedBudget"
