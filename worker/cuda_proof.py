"""Run by the tests' python in a process of its own: prove that a CUDA kernel ran here. One JSON line out.

The kernel's result depends on the nonce of this submission and is compared with a reference computed on the CPU.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys

SIZE = 512


def main(nonce: str, requested: str) -> dict[str, object]:
    """Allocate, run, synchronise, compare; `cuda_executed` is true only after all of it."""
    proof: dict[str, object] = {
        "device": "cuda",
        "cuda_executed": False,
        "requested": requested,
        "nonce": nonce,
        "error": None,
    }
    try:
        import torch

        proof.update(torch=torch.__version__, runtime=torch.version.cuda)
        if not torch.cuda.is_available() or torch.cuda.device_count() < 1:
            raise RuntimeError("torch sees no CUDA device")
        proof.update(
            name=torch.cuda.get_device_name(0), capability=list(torch.cuda.get_device_capability(0)), driver=driver()
        )
        seed = int.from_bytes(hashlib.sha256(nonce.encode()).digest()[:4], "big")
        generator = torch.Generator().manual_seed(seed)
        left = torch.randint(0, 64, (SIZE, SIZE), generator=generator)
        right = torch.randint(0, 64, (SIZE, SIZE), generator=generator)
        on_device = left.to("cuda", torch.float64) @ right.to("cuda", torch.float64)
        torch.cuda.synchronize()
        value = int(on_device.sum().item())
        reference = int((left @ right).sum().item())
        proof.update(value=str(value), reference=str(reference))
        if value != reference:
            raise RuntimeError(f"the kernel computed {value}, the CPU {reference}")
        proof["cuda_executed"] = True
    except Exception as trouble:  # noqa: BLE001 - whatever it is, it goes into the proof, and the run ends for it
        proof["error"] = f"{type(trouble).__name__}: {trouble}"
    return proof


def driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return (
            subprocess.run(query, capture_output=True, text=True, timeout=30, check=True).stdout.split("\n")[0].strip()
        )
    except (OSError, subprocess.SubprocessError):
        return ""


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:3])))
