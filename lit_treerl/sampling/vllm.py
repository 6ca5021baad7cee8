"""Sampling with a vLLM engine inside this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lit_treerl.sampling.base import Completion, FinishReason, Request, Sampler
from lit_treerl.sampling.checks import check_drained, check_request

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

CPU_BLOCK = 32  # tokens; vLLM's default of 128 on CPU hides the prefixes of short prompts from its cache


class VLLMSampler(Sampler):
    """Continuous batching and prefix caching by vLLM, in the process of the trainer.

    Start it after torch.distributed is initialised, and keep it until training is over: the engine takes part in
    the process group and takes it down when it goes.

    Args:
        dtype: of the weights, as vLLM names them; "auto" follows the policy's config, on CPU it is float32 (many CPUs
            are several times slower in bfloat16).
        gpu_memory_utilization: share of the GPU's memory for engine and cache; the trainer needs the rest.
        kv_cache_memory_bytes: exact size of the cache; on CPU 1 GiB when not given.
        max_num_seqs: most requests decoded at a time; 256, on CPU 64, when not given.
        block_size: tokens in a block of the prefix cache; on CPU 32 when not given.
        enforce_eager: run without compiled graphs; when not given, only on CPU.
        engine_args: further arguments of ``vllm.LLM``, by name.
    """

    def __init__(
        self,
        dtype: str = "auto",
        gpu_memory_utilization: float = 0.5,
        kv_cache_memory_bytes: int | None = None,
        max_num_seqs: int | None = None,
        block_size: int | None = None,
        enforce_eager: bool | None = None,
        engine_args: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.dtype = dtype
        self.gpu_memory_utilization = gpu_memory_utilization
        self.kv_cache_memory_bytes = kv_cache_memory_bytes
        self.max_num_seqs = max_num_seqs
        self.block_size = block_size
        self.enforce_eager = enforce_eager
        self.engine_args = engine_args
        self.version = 0
        self._llm: Any = None
        self._in_flight: dict[int, Request] = {}

    def start(
        self,
        policy: str | Path,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_context: int,
        device: torch.device | str = "cpu",
        seed: int = 0,
    ) -> None:
        """Build the engine; see :meth:`Sampler.start`. vLLM itself decides where to compute, by its build."""
        if self._llm is not None:
            return
        import torch
        from transformers import AutoConfig

        from lit_treerl.sampling.torch_state import kept_rng_and_threads
        from lit_treerl.sampling.vllm_quirks import prepare_kernel_scan, quiet_lone_group, quiet_rotary_reload
        from lit_treerl.sampling.weights import WeightNames

        on_cpu = torch.device(device).type == "cpu"
        _set_environment(on_cpu)
        config = AutoConfig.from_pretrained(policy)
        self._names = WeightNames.of_config(config)
        self._vocab_size = config.get_text_config().vocab_size
        self._max_context = max_context
        arguments = self._arguments(str(policy), max_context, on_cpu, seed)
        with kept_rng_and_threads(), tempfile.TemporaryDirectory() as folder:
            from vllm import LLM  # type: ignore[attr-defined]

            if on_cpu:
                prepare_kernel_scan()
            quiet_rotary_reload()
            tokenizer.save_pretrained(folder)  # the caller's tokenizer, whatever lies beside the weights
            config.save_pretrained(folder)  # vLLM looks for it there, and waits when it finds none
            self._llm = LLM(tokenizer=folder, **arguments)
        quiet_lone_group()
        self._engine = self._llm.llm_engine
        self._max_running = self._engine.vllm_config.scheduler_config.max_num_seqs

    def _arguments(self, policy: str, max_context: int, on_cpu: bool, seed: int) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "model": policy,
            "dtype": "float32" if on_cpu and self.dtype == "auto" else self.dtype,
            "max_model_len": max_context,
            "max_num_seqs": self.max_num_seqs or (64 if on_cpu else 256),
            "enforce_eager": on_cpu if self.enforce_eager is None else self.enforce_eager,
            "enable_prefix_caching": True,
            "scheduling_policy": "priority",  # lowest number first, as Request.priority has it
            "logprobs_mode": "processed_logprobs",
            "generation_config": "auto",  # for its eos ids; its sampling defaults are not used
            "seed": seed,
            "disable_log_stats": True,
        }
        block = self.block_size or (CPU_BLOCK if on_cpu else None)
        memory = self.kv_cache_memory_bytes or (1 << 30 if on_cpu else None)
        optional: dict[str, Any] = {"block_size": block, "kv_cache_memory_bytes": memory}
        if not on_cpu:
            optional["gpu_memory_utilization"] = self.gpu_memory_utilization
        arguments |= {name: value for name, value in optional.items() if value is not None}
        return arguments | (self.engine_args or {})

    def submit(self, request: Request) -> None:
        """Queue one request.

        Raises:
            ValueError: the request can never be sampled, for example because it is longer than ``max_context``.
            RuntimeError: the engine refuses it.
        """
        engine = self._started()
        check_request(request, max_context=self._max_context, vocab_size=self._vocab_size, in_flight=self._in_flight)
        try:
            (prompt,) = engine.renderer.render_cmpl([{"prompt_token_ids": list(request.prompt_ids)}])
            engine.add_request(str(request.id), prompt, _sampling_params(request), priority=request.priority)
        except Exception as error:
            raise RuntimeError(f"vLLM refuses request {request.id}: {error}") from error
        self._in_flight[request.id] = request
        self.counters.prompt_tokens += len(request.prompt_ids)

    def poll(self, interrupt: Callable[[], bool] | None = None) -> list[Completion]:
        """Step the engine until at least one request is done, and return the done ones.

        ``interrupt`` is asked after every step in which the engine could have run more requests.
        """
        from lit_treerl.sampling.torch_state import kept_rng

        engine = self._started()
        finished: list[Completion] = []
        while self._in_flight and not finished:
            try:
                with kept_rng():
                    outputs = engine.step()
            except Exception as error:
                waiting = ", ".join(str(i) for i in list(self._in_flight)[:8])
                raise RuntimeError(
                    f"vLLM failed with requests {waiting} (at most 8 named) in flight: {error}"
                ) from error
            finished = [self._complete(output) for output in outputs if output.finished]
            if interrupt is not None and len(self._in_flight) < self._max_running and interrupt():
                break
        return finished

    def abort(self) -> None:
        """Drop every request."""
        if self._engine is not None:
            self._started().abort_request([str(i) for i in self._in_flight])
        self._in_flight.clear()

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]], version: int) -> None:
        """Reload the engine's weights in place; see :meth:`Sampler.load_weights`.

        A list is checked before anything is touched. A generator is checked on the way, to hold one weight at a
        time; vLLM cannot take back half a reload, so an error then closes the engine.

        Raises:
            ValueError: a name is unknown or missing, or a shape is wrong.
            RuntimeError: requests are still in flight.
        """
        from lit_treerl.sampling.torch_state import kept_rng_and_threads

        self._started()
        check_drained(len(self._in_flight))
        if not isinstance(weights, Iterator):
            for _ in self._names.checked(weights):
                pass
        dtype = self._llm.model_config.dtype
        iterator = ((name, tensor.detach().to(dtype)) for name, tensor in self._names.checked(weights))
        try:
            with kept_rng_and_threads():
                self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": iterator})
        except BaseException:
            self.close()
            raise
        self.forget_prefixes()
        self.version = version

    def forget_prefixes(self) -> None:
        """Forget every cached prefix.

        Raises:
            RuntimeError: requests are still in flight, or vLLM did not forget.
        """
        self._started()
        check_drained(len(self._in_flight))
        if not self._llm.reset_prefix_cache():
            raise RuntimeError("vLLM did not reset its prefix cache; its entries belong to what came before")

    def close(self) -> None:
        """Give the engine back; this also ends torch.distributed's process group, so do it after training."""
        self._llm = self._engine = None
        self._in_flight.clear()

    def _complete(self, output: Any) -> Completion:
        request = self._in_flight.pop(int(output.request_id))
        result = output.outputs[0]
        ids = list(result.token_ids)
        cached = output.num_cached_tokens or 0
        self.counters.cached_tokens += cached
        self.counters.sampled_tokens += len(ids)
        logprobs = [float(entry[token].logprob) for token, entry in zip(ids, result.logprobs, strict=True)]
        return Completion(request.id, ids, logprobs, _finish_reason(result, request.id), cached)

    def _started(self) -> Any:
        if self._llm is None:
            raise RuntimeError("the sampler is not started; call start() first")
        return self._engine


def _sampling_params(request: Request) -> Any:
    from vllm import SamplingParams  # type: ignore[attr-defined]

    params = request.params
    return SamplingParams(
        max_tokens=params.max_new_tokens,
        temperature=params.temperature,
        stop=list(params.stop) or None,
        seed=request.seed,
        logprobs=0,  # of the sampled token only
        skip_special_tokens=False,
        spaces_between_special_tokens=False,
    )


def _finish_reason(result: Any, request_id: int) -> FinishReason:
    if result.finish_reason == "length":
        return "length"
    if result.finish_reason == "stop":  # a stop string is named; an eos id, or nothing, stands for an eos token
        return "stop" if isinstance(result.stop_reason, str) else "eos"
    raise RuntimeError(f"vLLM ended request {request_id} with {result.finish_reason!r}")


def _set_environment(on_cpu: bool) -> None:
    """What vLLM reads when it is imported; values set by the user stay."""
    wanted = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if on_cpu:
        wanted |= {"OMP_NUM_THREADS": "1", "TORCH_COMPILE_DISABLE": "1"}
    for name, value in wanted.items():
        os.environ.setdefault(name, value)
