"""AReaL with one controller: its rollout workers speak to engines through a gateway.

AReaL's controller starts an engine beside each rollout worker, or connects each to an engine that
runs already (as it does for evaluation).  `install` makes it do the latter with the addresses of a
gateway, one per engine (`gateway.shadow_ports`), and changes nothing else: which worker runs an
episode does not matter any more, since the gateway places each of its requests.

In SPMD mode no code is needed: `AREAL_LLM_SERVER_ADDRS` lists the same addresses.
"""

from collections.abc import Sequence
from typing import Any

from steersman.estimators.errors import InvalidInputError


def install(addresses: Sequence[str], controller: type[Any] | None = None) -> None:
    """Call it before the trainer is made; `addresses` are HOST:PORT, one per rollout worker."""
    parsed = [_parsed(address) for address in addresses]
    if not parsed:
        raise InvalidInputError("no address was given; valid: HOST:PORT of each engine's gateway")
    from areal.api import LocalInfServerInfo

    cls: Any = controller
    if cls is None:
        from areal.infra import RolloutController

        cls = RolloutController
    original = cls.initialize

    def initialize(self: Any, role: str, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("server_args", "server_infos"), args, strict=False)) | kwargs
        workers = self.rollout_alloc.parallel.dp_size
        if workers != len(parsed):
            raise InvalidInputError(
                f"AReaL starts {workers} rollout workers and the gateway has {len(parsed)} "
                "addresses; valid: as many of both"
            )
        given["server_infos"] = [LocalInfServerInfo(host, port, None) for host, port in parsed]
        return original(self, role, **given)

    cls.initialize = initialize


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or "/" in host:
        raise InvalidInputError(f"{address!r} is no address; valid: HOST:PORT")
    return host.strip("[]"), int(port)
