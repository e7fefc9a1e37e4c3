"""SkyRL: `trainer.override_entrypoint=steersman.controller.sidecar.skyrl`.

SkyRL starts its engines, and its router before them, as ever; then a gateway is put before the
engines.  Its client sends requests to the gateway instead of the router, and speaks to each engine
at the gateway's address of it, so that pauses and new weights are known there.

SkyRL's client sends no token.  On one machine the gateway listens on loopback; with engines or
workers elsewhere set `STEERSMAN_GATEWAY__HOST` to an address that all reach, and
`STEERSMAN_GATEWAY__INSECURE=true` if that network is trusted.

`trainer.fully_async.simulate_training` and the synchronous trainer run as they do without it.
"""

import atexit
from typing import Any

from steersman.controller.sidecar.serving import Sidecar, start_gateway


def attach(client: Any) -> Sidecar:
    """Put a gateway before the engines of a `RemoteInferenceClient`, which is changed in place."""
    sidecar = start_gateway(client.server_urls)
    atexit.register(sidecar.stop)
    client.proxy_url = sidecar.url
    client.server_urls = [sidecar.shadow(url) for url in client.server_urls]
    return sidecar


def steered(experiment: type[Any]) -> type[Any]:
    """SkyRL's experiment class (`BasePPOExp` or one of its own), with a gateway."""

    class SteeredExp(experiment):  # type: ignore[misc]
        def get_inference_client(self) -> Any:
            client = super().get_inference_client()
            attach(client)
            return client

    return SteeredExp


def main() -> None:
    """SkyRL's own `main`, with a steered experiment."""
    import sys

    import ray
    from skyrl.train.entrypoints import main_base

    arguments = [a for a in sys.argv[1:] if not a.startswith("trainer.override_entrypoint=")]
    config = main_base.SkyRLTrainConfig.from_cli_overrides(arguments)
    main_base.validate_cfg(config)
    main_base.initialize_ray(config)

    def run(cfg: Any) -> None:
        steered(main_base.BasePPOExp)(cfg).run()

    ray.get(ray.remote(num_cpus=1)(run).remote(config))
