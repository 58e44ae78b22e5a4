"""Every bound of a run, with its source. `worker/limits.py` holds the part that both sides share; a test keeps them equal."""

from typing import Final

from pytest_runpod.core.money import MicroUsd

SCHEMA: Final = "pytest-runpod/1"

# --- What is asked for. Source: the system this grew out of, verified there against the live service on 2026-10-15.
IMAGE: Final = (
    "runpod/pytorch:2.8.0-py3.11-cuda12.8.1-cudnn-devel-ubuntu22.04"
    "@sha256:cb154fcca15d1d6ce858cfa672b76505e30861ef981d28ec94bd44168767d853"
)
IMAGE_PYTHON: Final = "3.11"
IMAGE_CUDA: Final = "12.8"
GPU_TYPE: Final = "NVIDIA RTX A4000"  # pool AMPERE_16; its other members are excluded, read from the live catalog
WORKERS_MIN: Final = 0
WORKERS_MAX: Final = 1
DISK_GB: Final = 20  # container disk; the worker SDK's fitness check wants 10 % of it free
IDLE_TIMEOUT_S: Final = 5
QUEUE_DELAY_S: Final = 1  # scaler: start a worker once a job has waited this long

# --- Time, in seconds, from the inside out: each must end before the next one does.
WORKER_DEADLINE_S: Final = 840  # tests stop here, so that 60 s are left to pack and send what there is
EXECUTION_TIMEOUT_S: Final = 900  # provider: running time of one job
JOB_TTL_S: Final = 1200  # provider: queueing and retries included. Source: RunPod, job execution policies
WORKER_WALL_S: Final = 1500  # bootstrap's own timer: the worker's process ends itself
SETUP_DEADLINE_S: Final = 1800  # watchdog: the endpoint is gone by then; a job does not extend it
BILLING_LAG_S: Final = 3600  # after the hour of the deletion: a choice, no source states how far bills lag
CLEANUP_MARGIN_S: Final = 120  # a job is only submitted if its TTL and this still fit before the deadline
SDK_INSTALL_S: Final = 120
HEALTH_WAIT_S: Final = 180  # a new endpoint may answer 404 while it propagates
QUEUE_TIMEOUT_S: Final = 600  # a job may wait so long for a worker; then the reason is named and the run ends
CRASHING_S: Final = 45  # workers that look crashed for so long are a crash loop
REQUEST_TIMEOUT_S: Final = 60  # for one answer of the provider
OUTAGE_S: Final = 60  # so long the provider may give no answer while a job runs
EXIT_GRACE_S: Final = 10  # pytest has finished, its process has not: then it is ended

# --- Money.
PRICE_CEILING: Final = MicroUsd(700_000)  # $0.70 per GPU hour; advertised flex price $0.58
SETUP_RESERVE: Final = MicroUsd(1_000_000)  # initialising a worker can cost before any job
RESERVE_FLOOR: Final = MicroUsd(1_000_000)  # no reservation is smaller
JOB_MARGIN: Final = MicroUsd(1_000_000)
SHUTDOWN_RESERVE_S: Final = 600
DISK_ALLOWANCE: Final = MicroUsd(
    1_400
)  # 20 GB for half an hour at $0.10 per GB and month; sources disagree whether it is billed
STAGE_BUDGET: Final = MicroUsd(3_000_000)
TOTAL_BUDGET: Final = MicroUsd(10_000_000)

# --- Sizes, in bytes.
MAX_REQUEST: Final = 10_000_000  # `/run` as sent. Source: RunPod, send requests
MAX_RESULT: Final = 6_000_000  # compressed result archive; base64 makes 8 MB of it
MAX_MEMBER: Final = 64_000_000  # one file of an archive, unpacked
MAX_UNPACKED: Final = 512_000_000  # all of them together
MAX_MEMBERS: Final = 20_000
MAX_PATH: Final = 400  # bytes of one member's name
MAX_TEXT: Final = 1_000_000  # characters of one text of a report; more is cut out of its middle
MAX_PROGRESS: Final = 400_000  # one progress update, as sent
MAX_ENV: Final = 64_000  # environment of an endpoint, all values together

# --- Rounds.
PYTEST_RESTARTS: Final = 3  # fresh processes after a test has ended its own
CLEANUP_PASSES: Final = 5
POLL_S: Final = 2.0  # job status
HEALTH_POLL_S: Final = 15.0
