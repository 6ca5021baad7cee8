import json
import multiprocessing

import pytest
import yaml

from runs import CONFIGS, run


def test_a_run_grows_the_same_trees_with_its_environment_in_processes(tmp_path):
    """Which rows are sampled together goes by time, so that log-probs are equal up to rounding, all else exactly."""
    config = yaml.safe_load((CONFIGS / "env/embedded.yaml").read_text())
    config["class_path"] = "process_env.SearchInProcesses"
    (tmp_path / "env.yaml").write_text(yaml.safe_dump(config))
    options = ("--env", str(tmp_path / "env.yaml"), "--rollout.limits.env_processes", "2")
    plain, processes = (
        run(pytest.MonkeyPatch.context, "fit", tmp_path / name, "--trainer.max_epochs", "1", *more)
        for name, more in (("a", ()), ("b", options))
    )
    first = [[tree for group in one.trees[0] for tree in json.loads(group)] for one in (plain, processes)]
    for ours, other in zip(*first, strict=True):
        for node, same in zip(ours.pop("logprobs"), other.pop("logprobs"), strict=True):
            assert same == pytest.approx(node, abs=1e-4)
        assert other == ours
    assert len(processes.trees) == len(plain.trees)
    assert not multiprocessing.active_children()  # closed at the end of the stage
