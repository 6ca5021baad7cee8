"""The command ``lit-treerl check-env``: options of ``fit``, a table, and exit codes."""

from __future__ import annotations

import pytest

from command_world import TASK, Corridor
from doc_commands import ROOT, enter
from lit_treerl.check_env_command import main
from lit_treerl.data.row_source import TaskSource
from lit_treerl.trees.task import Task

pytestmark = pytest.mark.filterwarnings("ignore")


class Corridors(TaskSource):
    """Two tasks."""

    def load(self):
        return [TASK, Task("t2", "corridor", "take it", extra={"rooms": 2})]


class Forgetful(Corridor):
    """Restores nothing."""

    def _return_to(self, world):
        self.at, self.length = 0, self.rooms


@pytest.fixture(autouse=True)
def somewhere(tmp_path, monkeypatch):
    enter(tmp_path, monkeypatch)


OWN = ("--data.validation", "test_check_env_command.Corridors")


def test_a_good_environment(capsys):
    main(["--env", "command_world.Corridor", "--env.max_turns", "6", *OWN, "--episodes", "4"])
    shown = capsys.readouterr()
    assert shown.out.startswith("Corridor: 4 episodes, ")
    assert all(f" {call} " in shown.out for call in ("reset", "step", "snapshot", "restore"))
    assert shown.out.endswith("no problems found\n")
    assert shown.err == ""


def test_problems_are_told_and_exit_with_1(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--env", "test_check_env_command.Forgetful", *OWN])
    assert stopped.value.code == 1
    shown = capsys.readouterr().out
    assert "\nproblem: snapshot: task 't" in shown
    assert "; different too: " in shown
    assert shown.endswith(" problems\n")


def test_reward_range_seed_and_split(capsys):
    args = ["--env", "command_world.Corridor", "--env.scale", "5", "--data.test", OWN[1], "--split", "test"]
    main([*args, "--reward_range", "0", "5", "--seed", "3"])
    with pytest.raises(SystemExit):
        main([*args, "--reward_range", "0", "1"])
    assert "the reward 5.0 is not between 0.0 and 1.0" in capsys.readouterr().out


def test_environment_and_tasks_of_a_config(capsys):
    main(["--config", str(ROOT / "configs/tree_ppo.yaml"), "--data.validation.n", "3", "--episodes", "3"])
    assert "SearchQA: 3 episodes, " in capsys.readouterr().out
    files = ["--env", "configs/env/embedded.yaml", "--data.validation", "EmbeddedTasks", "--data.validation.n", "2"]
    main([*files, "--env.max_turns", "2", "--episodes", "2"])
    assert "no problems found" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([], "env: no environment is configured"),
        (["--env", "SearchQA"], "data.validation: no tasks are configured; give --data.validation EmbeddedTasks"),
        (["--env", "SerchQA"], "env: 'SerchQA' is not a known class; did you mean SearchQA?"),
        (["--env", "SearchQA", "--env.topk", "0", *OWN], "topk must be at least 1"),
        (["--env", "SearchQA", *OWN, "--episodes", "0"], "--episodes must be at least 1, got 0"),
        (["--env", "SearchQA", "--data.validation", "JSONLTasks", "--data.validation.path", "no.jsonl"], "no.jsonl"),
    ],
)
def test_wrong_settings_exit_with_2(args, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(args)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
