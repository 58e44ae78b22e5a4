"""The bounds that both sides share. Twin of `pytest_runpod/core/limits.py`; a test keeps the two equal."""

SCHEMA = "pytest-runpod/1"
WORKER_DEADLINE_S = 840
WORKER_WALL_S = 1500
SDK_INSTALL_S = 120
EXIT_GRACE_S = 10
MAX_RESULT = 6_000_000
MAX_MEMBER = 64_000_000
MAX_UNPACKED = 512_000_000
MAX_MEMBERS = 20_000
MAX_PATH = 400
MAX_PROGRESS = 400_000
MAX_TEXT = 1_000_000
