"""What we need of a provider: a dozen calls. RunPod's client and the emulator's account implement them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from pytest_runpod.core.cloud import FINAL, Bill, Endpoint, EndpointSpec, Gpu, Health, Job, Policy

__all__ = ["FINAL", "Bill", "Endpoint", "EndpointSpec", "Gpu", "Health", "Job", "Policy", "Provider"]


class Provider(Protocol):
    """The provider's calls. Reads and deletes may be retried inside; creating and submitting never are.

    Raises (all of them): `errors.ProviderError` and its branches; for a create or submit whose answer was lost,
    `errors.FateUnknown`.
    """

    def list_endpoints(self) -> tuple[Endpoint, ...]: ...

    def create_endpoint(self, spec: EndpointSpec) -> Endpoint: ...

    def get_endpoint(self, endpoint_id: str) -> Endpoint | None:
        """None: the provider says that there is none (404)."""
        ...

    def scale_to_zero(self, endpoint_id: str) -> None: ...

    def delete_endpoint(self, endpoint_id: str) -> None:
        """Already gone is success."""
        ...

    def gpus(self) -> tuple[Gpu, ...]: ...

    def bill(self, endpoint_id: str) -> Bill: ...

    def check_job_access(self) -> None:
        """Ask the job API about an endpoint that does not exist: 404 is the good answer, 401 and 403 raise."""
        ...

    def health(self, endpoint: Endpoint) -> Health | None:
        """None: not there yet (404)."""
        ...

    def submit(self, endpoint: Endpoint, job_input: Mapping[str, Any], policy: Policy) -> Job: ...

    def job(self, endpoint: Endpoint, job_id: str) -> Job | None:
        """None: not known any more (404): expired, or lost."""
        ...

    def requests(self, endpoint: Endpoint) -> tuple[Job, ...] | None:
        """The jobs that the endpoint lists; None: it does not say, or not in a way that we know."""
        ...

    def cancel(self, endpoint: Endpoint, job_id: str) -> None: ...

    def worker_log(self, endpoint_id: str) -> str:
        """What the endpoint's workers, and the platform about them, have written last. Empty: nothing can be had."""
        ...
