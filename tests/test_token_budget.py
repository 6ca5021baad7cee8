"""A run stops by its sampled tokens, resumed or not."""

from __future__ import annotations

from itertools import accumulate

import lightning as L
import pytest

from lit_treerl.callbacks.token_budget import TokenBudget
from lit_treerl.cli import main
from lit_treerl.settings import SettingsError
from runs import Run, arguments, run

pytestmark = pytest.mark.filterwarnings("ignore")

QUICK = ("--trainer.limit_val_batches", "0", "--data.tasks_per_iteration", "2", "--data.train.hops", "[1]")


def spent(done: Run) -> list[float]:
    return [float(row["rollout/sampled_tokens"]) for row in done.rows() if "rollout/sampled_tokens" in row]


def fit(root, *args: str) -> Run:
    return run(pytest.MonkeyPatch.context, "fit", root, *QUICK, *args)


def test_run_stops_with_the_iteration_that_reaches_the_total(tmp_path):
    """Whole, in two parts, and once more after its end: the same iterations in all."""
    free = fit(tmp_path / "free", "--trainer.max_epochs", "3")
    totals = list(accumulate(spent(free)))
    assert len(totals) == 3

    reached = int(totals[1])
    whole = fit(tmp_path / "exact", "--max_sampled_tokens", str(reached))
    assert spent(whole) == spent(free)[:2]

    part = fit(tmp_path / "part", "--max_sampled_tokens", str(int(totals[0]) - 1))
    assert spent(part) == spent(free)[:1]
    more = ("--ckpt_path", str(part.last), "--max_sampled_tokens", str(reached + 1))
    rest = fit(tmp_path / "rest", *more)
    assert spent(rest) == spent(free)[1:]
    (state,) = (v for k, v in rest.checkpoint()["callbacks"].items() if k.startswith("TokenBudget"))
    assert state == {"sampled": totals[2]}

    main(arguments("fit", tmp_path / "over", *QUICK, "--ckpt_path", str(rest.last), "--max_sampled_tokens", "1"))
    assert not list((tmp_path / "over").glob("version_*/checkpoints"))  # nothing was learned


def test_total_has_to_be_positive(tmp_path, capsys):
    with pytest.raises(ValueError, match="max_sampled_tokens must be at least 1, got 0"):
        TokenBudget(0)
    with pytest.raises(SystemExit) as end:
        main(arguments("fit", tmp_path, "--max_sampled_tokens", "0"))
    assert end.value.code == 2
    assert "max_sampled_tokens" in capsys.readouterr().err


def test_total_of_supervised_training_is_refused():
    class Supervised(L.LightningModule):
        pass

    with pytest.raises(SettingsError, match="max_sampled_tokens: a Supervised samples nothing in training"):
        TokenBudget(10).setup(L.Trainer(logger=False, accelerator="cpu"), Supervised(), "fit")
