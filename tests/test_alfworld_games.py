"""Games for ALFWorld: made the same for a seed, listed as alfworld lists them, missing and broken ones named."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("alfworld")

from lit_treerl.data.alfworld_tasks import AlfworldTasks
from lit_treerl.envs.alfworld_games.make import main, make_game, write_games
from lit_treerl.envs.alfworld_games.rooms import lore
from lit_treerl.envs.alfworld_games.settings import TASK_TYPES, GameSettings, check_types


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LIT_TREERL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    return tmp_path / "cache"


def everything(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def facts(problem: str, name: str) -> list[Any]:
    return [tuple(args.split()) for args in re.findall(rf"\({name} ([^()?]+)\)", problem)]


def test_equal_seeds_give_equal_bytes_and_more_games_begin_with_the_same(tmp_path, capsys):
    for name, n in (("a", 8), ("b", 8), ("c", 12)):
        main(["--out", str(tmp_path / name), "--n", str(n), "--seed", "3"])
    made = everything(tmp_path / "a")
    assert len(made) == 3 * 8 * 3
    assert made == everything(tmp_path / "b")
    assert made.items() < everything(tmp_path / "c").items()
    main(["--out", str(tmp_path / "d"), "--n", "8", "--seed", "4", "--splits", "train"])
    assert not made.items() & everything(tmp_path / "d").items()
    assert f"{tmp_path / 'd' / 'json_2.1.1' / 'train'}: 8 games" in capsys.readouterr().out


@pytest.mark.parametrize("settings", [GameSettings(), GameSettings(4, 1, (0, 2), 2)])
def test_every_game_is_possible_and_not_yet_won(settings):
    """What the task needs is there, of the right kind and where it may be; nothing of it is done."""
    known = lore()
    for number in range(60):
        game = make_game(number, "train", 5, settings, TASK_TYPES)
        trajectory, problem = json.loads(game.contents["traj_data.json"]), game.contents["initial_state.pddl"]
        wanted = trajectory["pddl_params"]
        kind = dict(facts(problem, "objectType"))
        place = dict(facts(problem, "inReceptacle"))
        holder = dict(facts(problem, "receptacleType"))
        assert set(place) == set(kind)
        assert all(
            kind[thing][:-4] in known.holds[holder[at][:-4]] | {"DeskLamp", "FloorLamp"} for thing, at in place.items()
        )
        targets = [thing for thing in kind if kind[thing] == f"{wanted['object_target']}Type"]
        assert len(targets) >= 1 + (trajectory["task_type"] == "pick_two_obj_and_place")
        assert set(targets) <= {thing for (thing,) in facts(problem, "pickupable")}
        if parent := wanted["parent_target"]:
            assert f"{parent}Type" in holder.values()
            assert all(holder[place[thing]] != f"{parent}Type" for thing in targets)
            assert (f"{parent}Type", f"{wanted['object_target']}Type") in facts(problem, "canContain")
        else:
            assert f"{wanted['toggle_target']}Type" in kind.values()
        locations = [at for _, at in facts(problem, "receptacleAtLocation")]
        assert len(set(locations)) == len(locations)
        if settings.receptacles:
            assert len(holder) <= 4
            assert len(kind) <= 2 + 2 + 1


def test_splits_have_the_rooms_they_should():
    def plans(split, rooms=None):
        settings = GameSettings(rooms=rooms)
        made = [make_game(number, split, 0, settings, TASK_TYPES) for number in range(60)]
        return {json.loads(game.contents["traj_data.json"])["scene"]["scene_num"] for game in made}

    assert all(plan % 100 <= 6 for plan in plans("valid_unseen"))
    assert all(plan % 100 > 6 for plan in plans("train") | plans("valid_seen"))
    assert plans("train", rooms=1) <= {7, 207, 307, 407}


def test_settings_that_cannot_be_met_say_so():
    with pytest.raises(ValueError, match="distractors must be two numbers"):
        GameSettings(distractors=(3, 1))
    with pytest.raises(ValueError, match="receptacles must be at least 2, got 1"):
        GameSettings(receptacles=1)
    with pytest.raises(ValueError, match="task_types has the unknown 'pick_up'"):
        check_types(["pick_up"])
    with pytest.raises(ValueError, match="task_types is empty"):
        check_types([])
    with pytest.raises(ValueError, match="split must be one of"):
        AlfworldTasks("test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n must be at least 1"):
        AlfworldTasks(n=0)


def test_generated_tasks_are_made_once_and_take_turns(cache, monkeypatch):
    tasks = AlfworldTasks("valid_seen", n=8, receptacles=5).load()
    assert [task.extra["task_type"] for task in tasks] == [*TASK_TYPES, *TASK_TYPES[:2]]
    assert [task.data_source for task in tasks] == [f"alfworld/{task.extra['task_type']}" for task in tasks]
    assert len({task.id for task in tasks}) == 8
    assert all(task.question and not task.question.endswith(".") for task in tasks)
    assert all(task.extra["params"]["object"] in task.id for task in tasks)
    monkeypatch.setattr("lit_treerl.envs.alfworld_games.kept.write_games", None)
    assert AlfworldTasks("valid_seen", n=8, receptacles=5).load() == tasks
    assert all(str(cache) in task.extra["game"] and Path(task.extra["game"]).is_file() for task in tasks)


def test_folders_are_read_whole_or_in_part_from_either_layout(tmp_path, monkeypatch):
    write_games(tmp_path / "games", 12, split="train")
    tasks = AlfworldTasks("train", games=str(tmp_path / "games")).load()
    assert [task.id for task in tasks] == sorted(task.id for task in tasks)
    assert len(tasks) == 12
    assert AlfworldTasks("train", games=str(tmp_path / "games" / "json_2.1.1")).load() == tasks
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "games"))
    few = AlfworldTasks("train", games=None, limit=4).load()
    assert len(few) == 4
    assert few != tasks[:4]
    assert all(task in tasks for task in few)
    assert AlfworldTasks("train", games=None, limit=4, seed=1).load() != few
    cool = AlfworldTasks("train", games=None, task_types=["pick_cool_then_place_in_recep"]).load()
    assert [task.extra["task_type"] for task in cool] == ["pick_cool_then_place_in_recep"] * 2


def test_what_alfworld_leaves_out_is_left_out_and_changes_are_seen(tmp_path):
    files = write_games(tmp_path, 6)
    source = AlfworldTasks("train", games=str(tmp_path))
    assert len(source.load()) == 6
    game = json.loads(files[0].read_text())
    files[0].write_text(json.dumps({**game, "solvable": False}))
    files[1].unlink()
    folder = files[2].parent.parent
    folder.rename(folder.with_name(folder.name.replace("-None-", "Sliced-None-")))
    trajectory = json.loads(files[3].with_name("traj_data.json").read_text())
    files[3].with_name("traj_data.json").write_text(
        json.dumps({**trajectory, "task_type": "pick_and_place_with_movable_recep"})
    )
    assert len(source.load()) == 2


def test_missing_games_are_told_with_where_and_how_to_make_them(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"\$ALFWORLD_DATA, which is not set.*make-games --out DIR"):
        AlfworldTasks("train", games=None).load()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "data"))
    with pytest.raises(FileNotFoundError, match=r"data/json_2.1.1/valid_unseen nor .*data/valid_unseen \(\$ALF"):
        AlfworldTasks("valid_unseen", games=None).load()
    (tmp_path / "data" / "train").mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match="holds no solvable game of the types"):
        AlfworldTasks("train", games=str(tmp_path / "data")).load()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("traj_data.json", lambda text: text[:40], r"traj_data.json: is not JSON .* cut off"),
        ("traj_data.json", lambda text: text.replace("task_type", "kind"), r"traj_data.json: the field 'task_type'"),
        ("traj_data.json", lambda text: text.replace("pddl_params", "x"), r"traj_data.json: the field 'pddl_params'"),
        ("game.tw-pddl", lambda text: text[:4000], r"game.tw-pddl: is not JSON"),
        ("game.tw-pddl", lambda text: "[1]", r"game.tw-pddl: must be a JSON object, but is a list"),
        ("game.tw-pddl", lambda text: text.replace("pddl_problem", "x"), r"game.tw-pddl: the field 'pddl_problem'"),
        ("game.tw-pddl", lambda text: text.replace("Your task is", "Do"), r"'grammar' does not say the task"),
    ],
)
def test_broken_files_are_named_with_their_field(tmp_path, name, change, message):
    file = write_games(tmp_path, 1)[0].with_name(name)
    file.write_text(change(file.read_text()))
    with pytest.raises(ValueError, match=message):
        AlfworldTasks("train", games=str(tmp_path)).load()


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    for args, message in (
        (["--n", "0"], "--n must be at least 1"),
        (["--distractors", "4", "2"], "distractors must be two numbers"),
        (["--splits", "test"], "invalid choice: 'test'"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(["--out", str(tmp_path), *args])
        assert stopped.value.code == 2
        assert message in capsys.readouterr().err
