import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lit_treerl.modeling.logprobs import token_logprobs


def inputs(n: int = 11, hidden: int = 6, vocab: int = 17, dtype: torch.dtype = torch.float64):
    g = torch.Generator().manual_seed(0)
    states = torch.randn(n, hidden, generator=g, dtype=dtype).requires_grad_()
    weight = torch.randn(vocab, hidden, generator=g, dtype=dtype).requires_grad_()
    bias = torch.randn(vocab, generator=g, dtype=dtype).requires_grad_()
    return states, weight, bias, torch.randint(0, vocab, (n,), generator=g)


@pytest.mark.parametrize("chunk", [1, 4, 11, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_equal_the_full_computation(chunk, temperature, with_bias):
    states, weight, bias, targets = inputs()
    out = torch.Generator().manual_seed(1)
    a, b = (torch.randn(11, generator=out, dtype=torch.float64) for _ in range(2))
    wanted = [states, weight, bias] if with_bias else [states, weight]

    logprobs, entropy = token_logprobs(states, weight, targets, temperature, chunk, bias if with_bias else None)
    found = torch.autograd.grad((a * logprobs + b * entropy).sum(), wanted)

    logits = (states @ weight.T + (bias if with_bias else 0)) / temperature
    full = torch.distributions.Categorical(logits=logits)
    expected = torch.autograd.grad((a * full.log_prob(targets) + b * full.entropy()).sum(), wanted)
    assert torch.allclose(logprobs, full.log_prob(targets), rtol=0, atol=1e-12)
    assert torch.allclose(entropy, full.entropy(), rtol=0, atol=1e-12)
    for x, y in zip(found, expected, strict=True):
        assert torch.allclose(x, y, rtol=0, atol=1e-12)


class LargestTensor(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else [result]:
            if isinstance(value, torch.Tensor):
                self.numel = max(self.numel, value.numel())
        return result


def largest(chunk: int, backward: str = "both") -> tuple[int, int]:
    """Largest tensor made, and elements kept for the backward pass."""
    states, weight, _, targets = inputs(n=64, hidden=4, vocab=100)
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.data_ptr()] = tensor.numel()
        return tensor

    with LargestTensor() as seen:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            logprobs, entropy = token_logprobs(states, weight, targets, 1.0, chunk)
        (logprobs + entropy if backward == "both" else logprobs).sum().backward()
    return seen.numel, max(saved.values(), default=0)


def test_no_tensor_of_all_logits_is_ever_made_forward_or_backward():
    made, _ = largest(chunk=8)
    assert made == 8 * 100  # a chunk's logits, and nothing larger
    assert largest(chunk=64)[0] == 64 * 100  # the measure sees the full matrix where there is one


def test_no_logits_are_kept_between_forward_and_backward():
    assert largest(chunk=8)[1] <= 100 * 4
    assert largest(chunk=8, backward="logprobs")[0] == 8 * 100
    assert largest(chunk=64)[1] == 64 * 100


def test_half_precision_gives_float32():
    states, weight, _, targets = inputs(dtype=torch.bfloat16)
    logprobs, entropy = token_logprobs(states, weight, targets, chunk_size=4)
    assert logprobs.dtype == entropy.dtype == torch.float32
    exact = token_logprobs(states.double(), weight.double(), targets)[0]
    assert torch.allclose(logprobs.double(), exact, atol=0.1)
    (logprobs.sum() + entropy.sum()).backward()
    assert states.grad is not None
    assert states.grad.dtype == torch.bfloat16


def test_no_tokens_give_no_logprobs():
    states, weight, _, targets = inputs()
    logprobs, entropy = token_logprobs(states[:0], weight, targets[:0])
    assert logprobs.shape == entropy.shape == (0,)


def test_bad_input_is_named():
    states, weight, _, targets = inputs()
    with pytest.raises(ValueError, match=r"must be positive, got 0\.0 and 5"):
        token_logprobs(states, weight, targets, 0.0, 5)
    with pytest.raises(ValueError, match="must be positive"):
        token_logprobs(states, weight, targets, 1.0, 0)
    with pytest.raises(ValueError, match="11 hidden states but 10 targets"):
        token_logprobs(states, weight, targets[:10])


@pytest.mark.parametrize("chunk", [3, None])
def test_either_output_alone_has_its_own_gradient(chunk):
    for number in range(2):
        states, weight, bias, targets = inputs()
        out = token_logprobs(states, weight, targets, 0.7, chunk, bias)[number]
        found = torch.autograd.grad(out.square().sum(), [states, weight, bias])
        full = torch.distributions.Categorical(logits=(states @ weight.T + bias) / 0.7)
        expected = torch.autograd.grad(
            (full.log_prob(targets), full.entropy())[number].square().sum(), [states, weight, bias]
        )
        assert all(torch.allclose(x, y, rtol=0, atol=1e-12) for x, y in zip(found, expected, strict=True))


def test_frozen_embeddings_get_no_gradient():
    states, weight, _, targets = inputs()
    logprobs, _ = token_logprobs(states, weight.detach(), targets, chunk_size=4)
    logprobs.sum().backward()
    assert states.grad is not None
    assert weight.grad is None


def test_chunks_under_autocast_equal_one_chunk_under_it():
    found = []
    for chunk in (4, 100):
        states, weight, _, targets = inputs(dtype=torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            logprobs, entropy = token_logprobs(states, weight, targets, 1.0, chunk)
        (logprobs.sum() + entropy.sum()).backward()
        found.append((logprobs.detach(), states.grad, weight.grad))
    for x, y in zip(*found, strict=True):
        assert x.dtype == torch.float32
        assert torch.allclose(x, y, atol=0.02)


def test_chunks_are_as_exact_as_one_where_logits_share_a_large_offset():
    generator = torch.Generator().manual_seed(0)
    states, weight = torch.randn(9, 6, generator=generator), torch.randn(50, 6, generator=generator)
    bias, targets = torch.full((50,), 1e3), torch.randint(50, (9,), generator=generator)
    found = []
    for chunk in (4, 100):
        hidden = states.clone().requires_grad_()
        logprobs, entropy = token_logprobs(hidden, weight, targets, 1.0, chunk, bias)
        (logprobs + entropy).sum().backward()
        found.append((logprobs.detach(), entropy.detach(), hidden.grad))
    for x, y in zip(*found, strict=True):
        assert torch.allclose(x, y, atol=1e-4)
