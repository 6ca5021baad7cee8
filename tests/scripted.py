"""A scripted policy, toy environments and a word-level tokenizer: rollouts whose every outcome is known."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from lit_treerl.envs.base import Environment, StepResult
from lit_treerl.rollout.grower import RolloutLimits, TreeGrower
from lit_treerl.rollout.tokens import Tokens
from lit_treerl.sampling.base import Completion, Request, Sampler
from lit_treerl.trees.search import TreeSearch
from lit_treerl.trees.seeding import derive_seed
from lit_treerl.trees.task import Message, Task
from lit_treerl.trees.tree import RolloutGroup, Tree

WORDS = ["<eos>", "<unk>", "start", "saw", "end", "answer", "turn", *"abcdefghijklmnopqrstuvwxyz", *map(str, range(10))]
TASK = Task("t", "toy", "start", ("x",))


def word_tokens() -> Tokens:
    """One token per word of :data:`WORDS`, split at white space; no chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokens(PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<eos>", unk_token="<unk>"))


def encode(text: str) -> list[int]:
    return [WORDS.index(word) for word in text.split()]


class ScriptedSampler(Sampler):
    """Answers every request with ``policy(context text, seed)``; a token's log-prob is -(its place + 1) / 10.

    Args:
        policy: writes the action.
        tokens: reads contexts and encodes actions.
        order: completions come one at a time in an order drawn from this; all at once, in order, when None.
    """

    def __init__(
        self, policy: Callable[[str, int], str], tokens: Tokens | None = None, order: random.Random | None = None
    ) -> None:
        super().__init__()
        self.policy, self.tokens, self.order = policy, tokens or word_tokens(), order
        self.requests: list[Request] = []
        self.queue: list[Request] = []

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to build."""

    def load_weights(self, *args: Any) -> None:
        """No weights."""

    def submit(self, request: Request) -> None:
        self.requests.append(request)
        self.queue.append(request)

    def abort(self) -> None:
        self.queue = []

    def poll(self, interrupt: Callable[[], bool] | None = None) -> list[Completion]:
        if self.order is None:
            taken, self.queue = self.queue, []
        else:
            taken = [self.queue.pop(self.order.randrange(len(self.queue)))]
        return [self.complete(request) for request in taken]

    def complete(self, request: Request) -> Completion:
        text = self.policy(self.tokens.tokenizer.decode(list(request.prompt_ids)), request.seed)
        ids = self.tokens.plain(text)
        return Completion(request.id, ids, [-(i + 1) / 10 for i in range(len(ids))], "stop")


def by_place(script: dict[tuple[int, int, int], str], seed: int = 0, task: str = "t") -> Callable[[str, int], str]:
    """A policy that looks its action up by (tree, branch, turn), found from the request's seed."""
    table = {derive_seed(seed, "action", task, *place): text for place, text in script.items()}
    return lambda context, seed: table[seed]


def wandering(letters: str = "abc", stop: float = 0.3) -> Callable[[str, int], str]:
    """A policy whose action depends on its seed alone: one or two letters, or an answer."""

    def act(context: str, seed: int) -> str:
        rng = random.Random(seed)
        if rng.random() < stop:
            return f"answer {rng.choice('xyz')}"
        return " ".join(rng.choice(letters) for _ in range(rng.randint(1, 2)))

    return act


class ToyEnv(Environment):
    """Repeats every action so far; ``answer x`` ends the episode, worth 1 where x is right; so does ``limit`` turns."""

    def __init__(self, limit: int = 9, blocking: bool = False) -> None:
        self.limit, self.max_turns = limit, limit
        self.runs_in = "threads" if blocking else "caller"
        self.seen: list[str] = []

    def _reset(self, task: Task) -> list[Message]:
        self.seen = []
        return [{"role": "user", "content": task.question}]

    def _step(self, text: str) -> StepResult:
        assert self._task is not None
        self.seen = [*self.seen, text]
        if text.startswith("answer") or len(self.seen) >= self.limit:
            right = text.removeprefix("answer ") in self._task.answers
            return StepResult(reward=float(right), done=True, action_key=text, info={"em": float(right)})
        shown = "saw " + " ".join(self.seen)
        return StepResult(observation=shown, closing=" end", action_key=text, info={"tool_calls": 1})

    def truncate(self) -> StepResult:
        return StepResult(reward=-0.5, done=True, info={"em": 0.0, "cut": True})


class StateEnv(ToyEnv):
    """The same with snapshots of its own instead of replay."""

    def snapshot(self) -> Any:
        return self._task, self.seen

    def restore(self, snapshot: Any) -> None:
        (self._task, self.seen), self._history = snapshot, []


class FixedDraw(TreeSearch):
    """A search that draws the nodes it is told to, round after round."""

    def drawing(self, *rounds: list[int]) -> FixedDraw:
        object.__setattr__(self, "plan", rounds)
        return self

    def draw_nodes(self, tree: Tree, n: int, rng: random.Random) -> list[int]:
        done = sum(not natural for natural in tree.natural) // self.expansions
        return self.plan[done]  # type: ignore[attr-defined]


def grow(
    sampler: Sampler,
    env: Environment,
    search: TreeSearch,
    tasks: Sequence[Task] = (TASK,),
    *,
    tokens: Tokens | None = None,
    seed: int = 0,
    on_leaf: Callable[[int], object] = lambda _: None,
    lockstep: bool = False,
    **limits: Any,
) -> list[RolloutGroup]:
    config = RolloutLimits(**({"max_new_tokens": 4, "max_context": 200} | limits))
    options: dict[str, Any] = {"seed": seed, "version": 3, "on_leaf": on_leaf, "lockstep": lockstep}
    grower = TreeGrower(sampler, env, tokens or word_tokens(), search, config, temperature=1.0, **options)
    return grower.grow(tasks, [search.trees] * len(tasks))
