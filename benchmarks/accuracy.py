"""The accuracy experiment: does a sampler on this device meet a target whose moments are known?

    python benchmarks/accuracy.py --device cuda            # one seed, 300 iterations, 100 of them warm-up, 32 chains

Hamiltonian Monte Carlo on a correlated Gaussian in four dimensions. Writes `accuracy.json` and `accuracy.png` to --output
(default: PYTEST_RUNPOD_ARTIFACTS, else here). Exit status: 0 the verdict is pass, 1 it is fail, 2 it could not be run.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch

DIMENSION = 4
FALSE_ALARM = 1e-4  # chance that a right sampler fails this experiment, over all moments together (Bonferroni)
TARGET_RATE = 0.8  # acceptance that warm-up aims at
MEAN = torch.tensor([1.0, -2.0, 0.0, 3.0], dtype=torch.float64)
DEVIATION = torch.tensor([0.5, 1.0, 1.5, 2.0], dtype=torch.float64)
INDEX = torch.arange(DIMENSION)
COVARIANCE = DEVIATION[:, None] * 0.8 ** (INDEX[:, None] - INDEX[None, :]).abs().double() * DEVIATION[None, :]


@dataclass(frozen=True)
class Settings:
    """What was run. *iterations* include *warmup*."""

    device: str
    seed: int
    iterations: int
    warmup: int
    chains: int


@dataclass(frozen=True)
class Moment:
    """One moment of the target: its known value, the estimate, its Monte Carlo standard error, and how far off it is."""

    name: str
    known: float
    estimate: float
    standard_error: float
    effective_sample_size: float
    z: float
    verdict: str


def sample(settings: Settings) -> tuple[torch.Tensor, float]:
    """Run all chains at once on the device. Returns draws (iterations, chains, 4) on the host, and the acceptance rate kept."""
    device = settings.device
    mu, precision = MEAN.to(device), torch.linalg.inv(COVARIANCE).to(device)

    def potential(x: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((x - mu) @ precision * (x - mu)).sum(-1)

    generator = torch.Generator(device=device).manual_seed(settings.seed)
    lengths = torch.randint(
        8, 20, (settings.iterations,), generator=torch.Generator().manual_seed(settings.seed)
    ).tolist()
    shape = (settings.chains, DIMENSION)
    x = 3 * DEVIATION.to(device) * torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
    draws, rates, step = [], [], 0.1
    for iteration, length in enumerate(lengths):
        p = torch.randn(shape, dtype=torch.float64, device=device, generator=generator)
        uniform = torch.rand(settings.chains, dtype=torch.float64, device=device, generator=generator)
        q, momentum = x, p - 0.5 * step * (x - mu) @ precision
        for k in range(length):
            q = q + step * momentum
            momentum = momentum - (step if k < length - 1 else 0.5 * step) * (q - mu) @ precision
        rise = potential(q) + 0.5 * (momentum**2).sum(-1) - potential(x) - 0.5 * (p**2).sum(-1)
        probability = torch.exp(-rise.clamp(min=0))
        x = torch.where((uniform < probability)[:, None], q, x)
        rate = float(probability.mean())
        draws.append(x.cpu())
        if iteration < settings.warmup:  # Robbins-Monro; fixed afterwards, since adapting on would change the target
            step *= math.exp((rate - TARGET_RATE) / math.sqrt(1 + iteration))
        else:
            rates.append(rate)
    return torch.stack(draws), sum(rates) / len(rates)


def effective_sample_size(values: torch.Tensor) -> float:
    """Of the mean of *values* (draws, chains), over all chains: Geyer's initial monotone sequence."""
    count, chains = values.shape
    centred = values - values.mean(0)
    spectrum = torch.fft.rfft(centred, n=2 * count, dim=0)
    autocovariance = torch.fft.irfft(spectrum.abs() ** 2, n=2 * count, dim=0)[:count].mean(1) / count
    within = float(autocovariance[0]) * count / (count - 1)
    pooled = within * (count - 1) / count + float(values.mean(0).var())
    rho = 1 - (within - autocovariance) / pooled
    rho[0] = 1.0
    total, smallest = 0.0, math.inf
    for even in range(0, count - 1, 2):
        pair = float(rho[even] + rho[even + 1])
        if pair <= 0:
            break
        smallest = min(smallest, pair)
        total += smallest
    return min(count * chains / (2 * total - 1), count * chains * math.log10(count * chains))


def judge(kept: torch.Tensor) -> tuple[list[Moment], float]:
    """Compare all means and covariances with what is known. Returns them, and the limit for |z|."""
    pairs = [(i,) for i in range(DIMENSION)] + [(i, j) for i in range(DIMENSION) for j in range(i, DIMENSION)]
    limit = NormalDist().inv_cdf(1 - FALSE_ALARM / len(pairs) / 2)
    moments = []
    for pair in pairs:
        first, last = pair[0], pair[-1]
        if len(pair) == 1:
            name, known, values = f"mean {first + 1}", float(MEAN[first]), kept[..., first]
        else:
            name, known = f"cov {first + 1},{last + 1}", float(COVARIANCE[first, last])
            values = (kept[..., first] - MEAN[first]) * (kept[..., last] - MEAN[last])
        size = effective_sample_size(values)
        error = float(values.std()) / math.sqrt(size)
        z = (float(values.mean()) - known) / error
        moments.append(Moment(name, known, float(values.mean()), error, size, z, "pass" if abs(z) <= limit else "fail"))
    return moments, limit


def draw(moments: list[Moment], kept: torch.Tensor, limit: float, path: Path, title: str) -> None:
    """One figure: the draws over the known ellipses, and every moment in units of its standard error."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    left.scatter(kept[..., 2].flatten(), kept[..., 3].flatten(), s=3, alpha=0.2, linewidths=0)
    circle = torch.linspace(0, 2 * math.pi, 200, dtype=torch.float64)
    root = torch.linalg.cholesky(COVARIANCE[2:, 2:])
    for radius in (1, 2, 3):
        ellipse = MEAN[2:, None] + radius * root @ torch.stack([circle.cos(), circle.sin()])
        left.plot(ellipse[0], ellipse[1], color="black", linewidth=0.8)
    left.set(xlabel="$x_3$", ylabel="$x_4$", title="Draws after warm-up; known 1, 2, 3 σ ellipses")
    names = [moment.name for moment in moments]
    right.axvspan(-limit, limit, color="0.92", zorder=0, label=f"|z| ≤ {limit:.2f}")
    right.plot([moment.z for moment in moments], names, "o")
    right.axvline(0, color="black", linewidth=0.8)
    right.invert_yaxis()
    right.set(xlabel="(estimate - known) / standard error", title=title)
    right.legend(loc="lower right")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def run(settings: Settings, folder: Path) -> dict[str, Any]:
    """Run the experiment and write both files. Returns what the JSON holds."""
    began = time.perf_counter()
    draws, rate = sample(settings)
    seconds = time.perf_counter() - began
    kept = draws[settings.warmup :]
    moments, limit = judge(kept)
    verdict = "pass" if all(moment.verdict == "pass" for moment in moments) else "fail"
    name = torch.cuda.get_device_name() if settings.device == "cuda" else "CPU"
    result = {
        "settings": asdict(settings),
        "device_name": name,
        "torch": torch.__version__,
        "acceptance_rate": rate,
        "tolerance": {
            "max_abs_z": limit,
            "false_alarm": FALSE_ALARM,
            "how": f"two-sided normal quantile, Bonferroni over {len(moments)} moments",
        },
        "moments": [asdict(moment) for moment in moments],
        "verdict": verdict,
        "sampling_seconds": seconds,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "accuracy.json").write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    draw(moments, kept, limit, folder / "accuracy.png", f"{name}: {verdict}")
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--iterations", type=int, default=300)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--chains", type=int, default=32)
    parser.add_argument("--output", type=Path, default=Path(os.environ.get("PYTEST_RUNPOD_ARTIFACTS", ".")))
    options = parser.parse_args()
    if options.chains < 2 or options.warmup < 0 or options.iterations - options.warmup < 20:
        parser.error("needs 2 chains or more, and 20 iterations or more after warm-up")
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("CUDA was asked for, and torch sees no CUDA device; nothing was run")
    settings = Settings(options.device, options.seed, options.iterations, options.warmup, options.chains)
    result = run(settings, options.output)
    worst = max(result["moments"], key=lambda moment: abs(moment["z"]))
    print(
        f"{result['verdict']}: {len(result['moments'])} moments on {result['device_name']}, largest |z| {abs(worst['z']):.2f} "
        f"({worst['name']}), limit {result['tolerance']['max_abs_z']:.2f}; {options.output / 'accuracy.json'}"
    )
    return 0 if result["verdict"] == "pass" else 1


if __name__ == "__main__":
    sys.exit(main())
