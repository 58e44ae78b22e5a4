"""Numbers on the device, judged by float64 on the host or by what is known; each tolerance says where it comes from."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.cuda


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Standard normal numbers in float64, drawn on the host: the same for every device."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_float32_products_are_not_replaced_by_tf32(device: str) -> None:
    # 1 + 2**-12 has 13 significant bits. TF32 has 11: it would give ones.
    matrix = torch.full((128, 128), 1 + 2**-12, device=device)

    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.equal(matrix @ torch.eye(128, device=device), matrix)


@pytest.mark.parametrize("name", ["sum", "mean", "var", "amax", "logsumexp"])
def test_a_reduction_agrees_with_float64(device: str, name: str) -> None:
    x = normal(64, 1000, seed=3).float()
    reduce = getattr(torch, name)

    # float32 rounds at 6e-8, and the sums of 1000 numbers stay below 200. Cancellation is why the limit is absolute as well.
    torch.testing.assert_close(reduce(x.to(device), 1).cpu().double(), reduce(x.double(), 1), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("dtype", "unit"), [(torch.float16, 2**-11), (torch.bfloat16, 2**-8)], ids=["half", "bfloat16"]
)
def test_softmax_in_half_precision_is_rounded_about_once(device: str, dtype: torch.dtype, unit: float) -> None:
    logits = normal(32, 100, seed=4).to(dtype)

    found = torch.softmax(logits.to(device), dim=1).cpu().double()

    # Evaluated in float32 and rounded once; twice that is allowed. float16 is evenly spaced by 2**-24 near zero.
    torch.testing.assert_close(found, torch.softmax(logits.double(), dim=1), rtol=2 * unit, atol=2**-24)


def test_special_values_follow_ieee_754(device: str, subtests: pytest.Subtests) -> None:
    x = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan], device=device)

    with subtests.test("a zero keeps its sign in a division"):
        assert (1 / x[:2]).tolist() == [math.inf, -math.inf]
    with subtests.test("infinity minus infinity is not a number"):
        assert math.isnan((x[2] + x[3]).item())
    with subtests.test("NaN does not equal itself"):
        assert (x == x).tolist() == [True, True, True, True, False]
    with subtests.test("a maximum does not swallow a NaN"):
        assert math.isnan(x.max().item())


def test_a_saved_state_resumes_a_stream(device: str) -> None:
    generator = torch.Generator(device=device).manual_seed(7)
    torch.randn(1000, device=device, generator=generator)
    saved = generator.get_state()
    expected = torch.randn(1000, device=device, generator=generator)

    resumed = torch.Generator(device=device)
    resumed.set_state(saved)

    assert torch.equal(torch.randn(1000, device=device, generator=resumed), expected)


def test_normal_numbers_have_the_right_moments(device: str) -> None:
    count = 1_000_000
    generator = torch.Generator(device=device).manual_seed(8)
    x = torch.randn(count, dtype=torch.float64, device=device, generator=generator)

    # Variances of x, x**2 and x**4 are 1, 2 and 96. Five standard errors: one seed in 1.7 million fails each of them.
    for found, known, variance in ((x.mean(), 0, 1), ((x**2).mean(), 1, 2), ((x**4).mean(), 3, 96)):
        assert abs(found.item() - known) <= 5 * math.sqrt(variance / count)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::PendingDeprecationWarning"
)  # of matplotlib's imports
def test_a_figure_comes_back(device: str, runpod_artifacts: Path) -> None:
    figure_of = pytest.importorskip("matplotlib.figure").Figure
    generator = torch.Generator(device=device).manual_seed(10)
    steps = torch.randn(500, 20, dtype=torch.float64, device=device, generator=generator)
    walks = steps.cumsum(0)

    figure = figure_of(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(walks.cpu().numpy(), linewidth=0.7)
    axes.set(xlabel="step", ylabel="position", title=f"20 random walks on {device}")
    figure.savefig(runpod_artifacts / "walks.png")

    assert (runpod_artifacts / "walks.png").read_bytes().startswith(b"\x89PNG")
    torch.testing.assert_close(walks[-1], steps.sum(0))
