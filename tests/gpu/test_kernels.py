"""What one would validate on a GPU, small: run by the demo on the worker, skipped here where torch has no CUDA."""

import json
import math
import unittest

import pytest

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.cuda,
    # Backward passes have a thread of their own, and torch warns when cuBLAS is the first to use CUDA there.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

# Unit round-off of each type; a matrix product of n terms is trusted to a small multiple of sqrt(n) of it.
ROUND_OFF = {torch.float64: 2**-53, torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}


def generator(device: str, seed: int = 7) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)


@pytest.mark.parametrize("dtype", ROUND_OFF, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_a_matrix_product_agrees_with_float64(device, dtype):
    left = torch.randn(96, 96, dtype=torch.float64, generator=generator("cpu"))
    right = torch.randn(96, 96, dtype=torch.float64, generator=generator("cpu", 8))
    reference = left.to(dtype).double() @ right.to(dtype).double()
    found = (left.to(device, dtype) @ right.to(device, dtype)).double().cpu()
    error = float((found - reference).abs().max() / reference.abs().max())
    assert error < 4 * math.sqrt(96) * ROUND_OFF[dtype]


def test_a_sum_of_a_million_terms_is_exact_where_it_can_be(device):
    assert int(torch.arange(1_000_000, device=device).sum()) == 499_999_500_000


def test_gradients_agree_with_finite_differences(device):
    layer = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device, torch.float64)
    inputs = torch.randn(5, 3, dtype=torch.float64, device=device, generator=generator(device)).requires_grad_()
    assert torch.autograd.gradcheck(layer, (inputs,))


def test_a_line_is_learned(device, runpod_artifacts):
    inputs = torch.linspace(-1, 1, 64, device=device)[:, None]
    targets = 3 * inputs - 1
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    losses = []
    for _ in range(200):
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    (runpod_artifacts / "losses.json").write_text(json.dumps(losses))
    assert losses[-1] < 1e-6
    assert float(model.weight.detach()) == pytest.approx(3, abs=1e-3)
    assert float(model.bias.detach()) == pytest.approx(-1, abs=1e-3)


def test_a_seed_gives_the_same_stream_again(device):
    one, two = (torch.rand(1000, device=device, generator=generator(device, seed)) for seed in (1, 1))
    other = torch.rand(1000, device=device, generator=generator(device, 2))
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


def test_sorting_is_stable_where_it_says_so(device):
    keys = torch.randint(0, 5, (10_000,), device=device, generator=generator(device))
    order = torch.sort(keys, stable=True).indices
    same = keys[order][1:] == keys[order][:-1]
    assert bool((order[1:][same] > order[:-1][same]).all())


def test_a_convolution_commutes_with_a_shift(device):
    signal = torch.randn(1, 1, 64, dtype=torch.float64, device=device, generator=generator(device))
    kernel = torch.randn(1, 1, 5, dtype=torch.float64, device=device, generator=generator(device, 9))

    def circular(x):
        return torch.nn.functional.conv1d(torch.cat([x, x[..., :4]], dim=-1), kernel)

    torch.testing.assert_close(circular(signal.roll(3, -1)), circular(signal).roll(3, -1))


@pytest.mark.xfail(reason="half precision ends at 65504", strict=True)
def test_half_precision_holds_a_hundred_thousand(device):
    assert torch.isfinite(torch.tensor(100_000.0, device=device).half())


def test_every_norm_is_the_one_of_its_definition(device, subtests):
    vector = torch.tensor([3.0, -4.0, 0.0], dtype=torch.float64, device=device)
    for order, expected in ((1, 7.0), (2, 5.0), (math.inf, 4.0)):
        with subtests.test("norm", order=order):
            assert float(torch.linalg.vector_norm(vector, order)) == expected


class SolvesSystems(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def _on_device(self, device):
        self.device = device

    def test_a_solution_solves(self):
        matrix = torch.randn(32, 32, dtype=torch.float64, device=self.device, generator=generator(self.device))
        matrix = matrix @ matrix.T + 32 * torch.eye(32, dtype=torch.float64, device=self.device)
        right = torch.ones(32, dtype=torch.float64, device=self.device)
        torch.testing.assert_close(matrix @ torch.linalg.solve(matrix, right), right)
