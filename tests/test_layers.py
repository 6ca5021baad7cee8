"""Imports point downward only, and the command answers before anything heavy is loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lit_treerl"
LAYERS = [  # from the bottom; a module may import from its own layer and those below
    {"settings", "trees"},
    {"algorithms", "sampling", "envs", "retrieval", "modeling"},
    {"metrics", "rollout", "policies", "schedules", "optimizers"},
    {
        "module",
        "sft",
        "policy_module",
        "updates",
        "update_stats",
        "critic_training",
        "actor_critic",
        "critic_building",
        "warmup_trees",
        "config_errors",
    },
    {"callbacks"},
    {"data"},
    {"registry", "command", "check_env_command", "cli"},
]
UPWARD = {  # inside functions only: what is imported there, and why
    ("config_errors", "registry"): "an unknown class is answered with the known ones",
}


def room(module: str) -> str:
    """The part of ``lit_treerl.room.anything`` that has a layer."""
    return module.split(".")[1]


def layer(name: str) -> int:
    return next(i for i, names in enumerate(LAYERS) if name in names)


def imports(tree: ast.Module, top: bool) -> set[str]:
    """Modules of the package that are imported at module level, or inside functions; typing-only ones left out."""
    inside = {id(node) for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for node in ast.walk(f)}
    typing = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing or (id(node) in inside) is top:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        found |= {name for name in names if name.startswith("lit_treerl.") and not name.startswith("lit_treerl.__")}
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE)


def test_every_module_has_a_layer():
    rooms = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in FILES}
    assert rooms == set().union(*LAYERS)
    assert sum(map(len, LAYERS)) == len(rooms)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_import_points_upward(path):
    tree, own = ast.parse(path.read_text()), path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    upward = {name for name in imports(tree, top=True) if layer(room(name)) > layer(own)}
    assert upward == set(), f"{path.name} imports from a layer above"
    lazy = {room(name) for name in imports(tree, top=False) if layer(room(name)) > layer(own)}
    assert {name for name in lazy if (own, name) not in UPWARD} == set()


def test_the_exceptions_are_still_needed():
    lazy = {
        (own, room(name))
        for path in FILES
        for own in [path.relative_to(PACKAGE).parts[0].removesuffix(".py")]
        for name in imports(ast.parse(path.read_text()), top=False)
        if layer(room(name)) > layer(own)
    }
    assert lazy == set(UPWARD)


def loaded(code: str) -> set[str]:
    """Top-level packages that are loaded after ``code`` in a fresh process."""
    report = "\nimport sys; print('\\nLOADED', *{name.split('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("LOADED")[2].split())


HEAVY = {"torch", "lightning", "transformers", "vllm", "peft", "datasets", "bm25s", "numba", "jsonargparse", "numpy"}


@pytest.mark.parametrize("args", [["--help"], ["--version"], []], ids=str)
def test_help_and_version_load_nothing_heavy(args):
    found = loaded(f"from lit_treerl.cli import main; main({args!r})")
    assert "lit_treerl" in found
    assert not HEAVY & found


def test_the_classes_of_the_command_line_load_no_engine():
    """What ``fit --help`` needs: Lightning, but neither vLLM nor peft, datasets, bm25s or numba."""
    found = loaded("import lit_treerl.command, lit_treerl.registry")
    assert "lightning" in found
    assert not {"vllm", "peft", "datasets", "bm25s", "numba"} & found
