"""Every shipped config parses and builds, on top of what its own header names."""

import re

import pytest
import yaml

from runs import CONFIGS, built

pytestmark = pytest.mark.filterwarnings("ignore")
FILES = sorted(CONFIGS.rglob("*.yaml"))
WHOLE = (CONFIGS, CONFIGS / "paper")  # folders of configs that stand alone
NAMED = re.compile(r"--(\w+) (configs/[\w/]+\.yaml)")


def launch(path) -> list[str]:
    """The config options in a file's header, a base before them where it names none."""
    header = " ".join(line.strip("# ") for line in path.read_text().splitlines() if line.startswith("#"))
    own = f"configs/{path.relative_to(CONFIGS)}"
    named = list(dict.fromkeys(NAMED.findall(header)))
    named = named[: [file for _, file in named].index(own) + 1]  # what follows is about other files
    if not any((CONFIGS.parent / file).parent in WHOLE for _, file in named):
        named.insert(0, ("config", "configs/tree_grpo.yaml"))
    return [word for option, file in named for word in (f"--{option}", str(CONFIGS.parent / file))]


@pytest.fixture
def build(monkeypatch, tmp_path):
    """What a command line with these options builds."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.set_num_threads", lambda _: None)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setenv("PL_SEED_WORKERS", "0")
    return lambda *args: built(monkeypatch, "fit", *args, "--trainer.accelerator", "cpu")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CONFIGS)))
def test_config_builds(path, build):
    cli = build(*launch(path))
    settings = yaml.safe_load(path.read_text())
    assert settings, "an empty config changes nothing"
    everything = flatten(cli.config.fit.as_dict())
    own = {key: value for key, value in flatten(settings).items() if not str(value).endswith(".yaml")}
    own.pop("trainer.accelerator", None)

    def taken(key: str, value) -> bool:
        return any(name.endswith(key) and same(found, value) for name, found in everything.items())

    assert [key for key, value in own.items() if not taken(key, value)] == []  # what the file says is what was built


def flatten(value, prefix: str = "") -> dict:
    """Nested settings as dotted keys; a class named alone counts as its class_path."""
    if isinstance(value, dict) and value:
        out = {}
        for key, inner in value.items():
            out |= flatten(inner, f"{prefix}.{key}".lstrip("."))
        return out
    return {re.sub(r"\.?class_path$", "", prefix): value}


def same(found, value) -> bool:
    """Whether a parsed setting is the one in the file; classes may have got their full names."""
    if isinstance(value, str) and isinstance(found, str):
        return found == value or found.endswith("." + value)
    return list(found) == value if isinstance(value, list) and isinstance(found, tuple | list) else found == value


def test_a_shared_critic_goes_over_the_paper_config(build):
    model = build(*launch(CONFIGS / "paper/tree_ppo_qa.yaml"), *launch(CONFIGS / "model/shared_critic.yaml")[-2:]).model
    assert (model.critic_config.backbone, model.critic_config.lora) == ("shared", None)
    assert (model.actor_config.lora, model.actor_config.dtype) == ({"r": 32, "lora_alpha": 64}, "bfloat16")
    assert (model.actor_lr, model.critic_config.lr) == (1e-5, 1e-4)
    assert model.policy == "Qwen/Qwen2.5-7B-Instruct"
    assert model.value_tree.half_life == 16


def test_there_are_configs():
    assert {path.name for path in FILES if path.parent == CONFIGS} == {
        *("tree_grpo.yaml", "grpo.yaml", "tree_ppo.yaml", "ppo.yaml", "sft.yaml"),
        *("alfworld_sft.yaml", "webshop_sft.yaml"),
    }
