"""Cards, pools and flex prices of Serverless. Source: the provider's GPU types and pricing pages, read 2026-08-20."""

from __future__ import annotations

from typing import Any, Final

# id, short name, pool, GB. Only cards whose pool the provider's pages state.
CARDS: Final = (
    ("NVIDIA RTX A4000", "RTX A4000", "AMPERE_16", 16),
    ("NVIDIA RTX A4500", "RTX A4500", "AMPERE_16", 20),
    ("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada", "AMPERE_16", 20),
    ("NVIDIA RTX 2000 Ada Generation", "RTX 2000 Ada", "AMPERE_16", 16),
    ("NVIDIA L4", "L4", "AMPERE_24", 24),
    ("NVIDIA RTX A5000", "RTX A5000", "AMPERE_24", 24),
    ("NVIDIA GeForce RTX 3090", "RTX 3090", "AMPERE_24", 24),
    ("NVIDIA GeForce RTX 4090", "RTX 4090", "ADA_24", 24),
    ("NVIDIA RTX A6000", "RTX A6000", "AMPERE_48", 48),
    ("NVIDIA A40", "A40", "AMPERE_48", 48),
    ("NVIDIA L40", "L40", "ADA_48_PRO", 48),
    ("NVIDIA L40S", "L40S", "ADA_48_PRO", 48),
    ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", "ADA_48_PRO", 48),
    ("NVIDIA A100 80GB PCIe", "A100 PCIe", "AMPERE_80", 80),
    ("NVIDIA A100-SXM4-80GB", "A100 SXM", "AMPERE_80", 80),
    ("NVIDIA H100 80GB HBM3", "H100 SXM", "ADA_80_PRO", 80),
    ("NVIDIA H200", "H200 SXM", "HOPPER_141", 141),
    ("NVIDIA B200", "B200", "BLACKWELL_180", 180),
)
# US dollars per GPU hour, from the price per second.
PRICES: Final = {
    "AMPERE_16": 0.58,
    "AMPERE_24": 0.684,
    "ADA_24": 1.116,
    "AMPERE_48": 1.224,
    "ADA_48_PRO": 1.908,
    "AMPERE_80": 2.736,
    "ADA_80_PRO": 4.176,
    "BLACKWELL_96": 3.996,  # its cards are named by no page in the catalog's spelling
    "HOPPER_141": 5.58,
    "BLACKWELL_180": 8.64,
}


def gpu_types(price_factor: float = 1.0) -> list[dict[str, Any]]:
    """The catalog as `GET /v2/catalog/gpus` lists it."""
    return [
        {
            "id": card,
            "name": name,
            "pool": pool,
            "manufacturer": "NVIDIA",
            "memory": memory,
            "secure": True,
            "community": False,
            "price": {"secure": 0.0, "community": 0.0, "serverless": round(PRICES[pool] * price_factor, 6)},
            "maxCount": {"secure": 1, "community": 0},
        }
        for card, name, pool, memory in CARDS
    ]
