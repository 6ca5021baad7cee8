"""What the command says to wrong settings: the key, the fault, what would be right; exit code 2 and no traceback."""

import pytest

from lit_treerl.cli import main
from lit_treerl.config_errors import explain
from runs import CONFIGS

pytestmark = pytest.mark.filterwarnings("ignore:LightningCLI's args parameter")
BASE = ["fit", "--config", str(CONFIGS / "tree_grpo.yaml")]


def refused(capsys, *args: str) -> str:
    """Standard error of a command that must stop before it starts anything."""
    with pytest.raises(SystemExit) as stopped:
        main(args)
    said = capsys.readouterr().err.strip()
    assert stopped.value.code == 2
    assert "Traceback" not in said
    assert "NestedArg" not in said
    lines = [line for line in said.splitlines() if "Seed set" not in line]
    assert lines[0].startswith("lit-treerl: error: ")
    return "\n".join(lines).removeprefix("lit-treerl: error: ")


@pytest.mark.parametrize(
    ("args", "parts"),
    [
        # wrong keys
        ("--serch.trees 2", ["unknown option --serch.trees", "did you mean --search.trees?"]),
        ("--search.tres 2", ["unknown option --search.tres", "did you mean --search.trees?"]),
        ("--trainer.max_epoch 3", ["unknown option --trainer.max_epoch;", "did you mean --trainer.max_epochs?"]),
        (
            "--model.actor_lrr 1",
            ["unknown parameter model.actor_lrr", "mean actor_lr?", "LitTreeRL takes policy,"],
        ),
        (
            "--model.loss.klcoef 1",
            ["unknown parameter model.loss.klcoef", "mean kl_coef?", "LossConfig takes clip_low"],
        ),
        ("--model.algorithm.levl intra", ["parameter model.algorithm.levl", "did you mean level?", "TreeGRPO takes"]),
        ("--data.train.path x", ["unknown parameter data.train.path", "EmbeddedTasks takes split, n, hops, seed"]),
        ("--env.retriever.sed 3", ["unknown parameter env.retriever.sed", "did you mean seed?"]),
        ("--sampler.max_bacth 3", ["unknown parameter sampler.max_bacth", "did you mean max_batch?"]),
        ("bogus", ["bogus"]),
        # wrong classes
        ("--sampler Transformers", ["sampler: 'Transformers'", "mean TransformersSampler?", "known are auto, Transf"]),
        (
            "--model.algorithm TreeGRP",
            ["model.algorithm: 'TreeGRP'", "mean TreeGRPO?", "known are TreeGRPO, GRPO,"],
        ),
        ("--model LitTreeR", ["model: 'LitTreeR'", "did you mean LitTreeRL?", "known are LitTreeRL, LitSFT"]),
        ("--env Searc", ["env: 'Searc'", "did you mean SearchQA?"]),
        ("--budget Unifor", ["budget: 'Unifor'", "did you mean UniformBudget?"]),
        ("--model.value_tree Tree", ["model.value_tree: 'Tree'", "known are ValueTree"]),
        ("--budget.most 3", ["unknown parameter budget.most", "UniformBudget takes no parameters"]),
        ("--warmup.iteration 3", ["unknown option --warmup.iteration", "did you mean --warmup.iterations?"]),
        ("--model.critic.lrr 1", ["unknown parameter model.critic.lrr", "did you mean lr?", "CriticConfig takes"]),
        (
            "--model.value_tree ValueTree --model.value_tree.halflife 3",
            ["unknown parameter model.value_tree.halflife", "did you mean half_life?", "ValueTree takes half_life"],
        ),
        ("--model.algorithm PPO --model.algorithm.mixture false", ["parameter model.algorithm.mixture", "PPO takes"]),
        # wrong types and choices
        ("--search.trees x", ["search.trees: expected int, got 'x'"]),
        ("--trainer.max_epochs x", ["trainer.max_epochs: expected int or null, got 'x'"]),
        (
            "--model.algorithm.level intr",
            ["algorithm.level: expected one of 'both', 'intra', 'inter', got 'intr'"],
        ),
        ("--data.train.split tran", ["data.train.split: expected one of 'train', 'validation', 'test', got 'tran'"]),
        ("--env.topk x", ["env.topk: expected int, got 'x'"]),
        ("--threads 0", ["threads: ", "v>0"]),
        ("--model.algorithm.baseline mean", ["algorithm.baseline: expected one of 'group', 'apvt', 'critic'"]),
        ("--model.algorithm.credit node", ["model.algorithm.credit: expected one of 'leaf', 'edge', got 'node'"]),
        ("--model.critic.backbone shard", ["model.critic.backbone: expected one of 'own', 'shared', got 'shard'"]),
        ("--model.critic.loss.kind mae", ["critic.loss.kind: expected one of 'mse', 'bce', 'huber', got 'mae'"]),
        (
            "--search.draw best",
            ["draw: expected one of 'uniform', 'entropy', 'critic', 'critic_gap', got 'best'"],
        ),
        (
            "--model.algorithm PPO --model.algorithm.normalisation group_std",
            ["model.algorithm.normalisation: expected one of 'batch', 'none', got 'group_std'"],
        ),
        # wrong values
        ("--budget CriticGuidedBudget --budget.most 0.5", ["budget.most must be at least 1", "got 0.5"]),
        ("--warmup.held_out 1", ["warmup.held_out must be between 0 and 1, got 1.0"]),
        (
            "--model.value_tree ValueTree --model.value_tree.half_life 0",
            ["model.value_tree.half_life must be above 0, or null for no decay, got 0.0"],
        ),
        ("--model.critic.passes 0", ["model.critic.passes must be at least 1, got 0"]),
        ("--model.critic.loss.clip 0", ["clip must be null or above 0, got 0.0"]),
        (
            "--model.critic.backbone shared --model.critic.policy a/b",
            ["model.critic.policy goes with backbone 'own'"],
        ),
        ("--model.algorithm PPO --model.algorithm.gae_lambda 2", ["gae_lambda in [0, 1], got 1.0 and 2.0"]),
        ("--model.critic.weight_saturation 0", ["model.critic.weight_saturation must be above 0 and finite, got 0.0"]),
        ("--model.critic.lr -1", ["model.critic.lr must be finite and not negative, got -1.0"]),
        (
            "--model.algorithm TreePPO --model.algorithm.weight_saturation 0",
            ["weight_saturation must be above 0 and finite, got 0.0"],
        ),
        (
            "--model.algorithm.baseline critic --model.algorithm.normalisation group_std",
            ["'group_std' and singletons 'published' go with baseline 'group'", "not with baseline 'critic'"],
        ),
        ("--model.actor_lr -1", ["model.actor_lr must be finite and not negative, got -1.0"]),
        (
            "--model.algorithm TreePPO --model.value_tree ValueTree --model.value_tree.discount 0.9",
            ["model.algorithm.discount is 1.0 and model.value_tree.discount 0.9", "give them the same value"],
        ),
        (
            "--model.algorithm TreePPO --model.algorithm.level token --model.algorithm.discount 0.9"
            " --model.value_tree ValueTree --model.value_tree.discount 0.9",
            ["model.algorithm.discount 0.9 counts tokens", "the value tree counts steps"],
        ),
        ("--search.trees 0", ["search.trees must be at least 1, got 0"]),
        ("--search.keep_leaves 9", ["search.keep_leaves must be null or in 1..3"]),
        ("--rollout.temperature 0", ["rollout.temperature must be above 0"]),
        ("--rollout.limits.max_new_tokens 0", ["rollout.limits.max_new_tokens must be at least 1, got 0"]),
        ("--model.loss.kl_coef -1", ["kl_coef must not be negative, got -1.0"]),
        ("--model.update.aggregation fixed_length", ["model.update.fixed_length goes with aggregation"]),
        ("--model.optimizer.schedule.decay linear", ["schedule.decay 'linear' needs schedule.decay_steps"]),
        ("--data.tasks_per_iteration 0", ["data.tasks_per_iteration", "at least 1"]),
        ("--env null", ["env: no environment is configured; give --env SearchQA"]),
        ("--trainer.accelerator gpuu", ["'gpuu'", "auto"]),
        # wrong paths
        ("--config none.yaml", ["config: ", "none.yaml"]),
        ("--model.policy ./none", ["model.policy: './none' has no config.json", "or one of embedded, "]),
        ("--ckpt_path none.ckpt", ["ckpt_path: there is no checkpoint none.ckpt"]),
        ("--data.train JSONLTasks --data.train.path none.jsonl", ["data.train: no task file at none.jsonl"]),
    ],
)
def test_wrong_settings_end_at_once_and_say_what_would_be_right(args, parts, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, *BASE, *args.split())
    assert [part for part in parts if part not in said] == []
    assert len(said.splitlines()) <= 2, said


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("serch: {trees: 3}", ["--serch.trees", "did you mean --search.trees?"]),
        ("search: {tres: 3}", ["--search.tres", "did you mean --search.trees?"]),
        ("search: {trees: many}", ["search.trees: expected int, got 'many'"]),
        ("model: {init_args: {actor_lrr: 1}}", ["model.actor_lrr", "did you mean actor_lr?"]),
        ("model: {init_args: {loss: {klcoef: 3}}}", ["model.loss.klcoef", "did you mean kl_coef?"]),
        ("model: {class_path: LitTreeR}", ["model: 'LitTreeR'", "did you mean LitTreeRL?"]),
        ("model: {", ["wrong.yaml", "line 2"]),
    ],
)
def test_wrong_config_files_too(text, parts, capsys, tmp_path):
    path = tmp_path / "wrong.yaml"
    path.write_text(text + "\n")
    said = refused(capsys, *BASE, "--config", str(path))
    assert [part for part in parts if part not in said] == []


def test_an_unknown_command_is_named_with_the_known_ones(capsys):
    assert "unknown command 'fitt'; commands are fit, validate, test, predict" in refused(capsys, "fitt")


def test_broken_rows_stop_the_run_and_name_file_and_line(capsys, tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n{"question": "q"}\n')
    said = refused(capsys, *BASE, "--data.train", "JSONLTasks", "--data.train.path", str(path))
    assert "data.train: " in said
    assert "tasks.jsonl, line 2: needs one of golden_answers, answers, answer" in said


def test_unknown_messages_pass_through():
    assert explain("something else entirely") == "something else entirely"
    assert explain('Parser key "a.b": File does not exist: x') == "a.b: File does not exist: x"
