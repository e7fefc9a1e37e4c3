"""Connecting to a Ray cluster, or starting one on this machine.

Ray itself waits minutes for an address that does not answer, so the address is tried first.
"""

import logging
import os
import socket
from dataclasses import dataclass

import ray

from steersman.estimators.errors import FleetError

PROBE_TIMEOUT_S = 5.0
"""For the cluster's TCP port to answer."""
OBJECT_STORE_BYTES = 200 << 20
"""Object store of a cluster started here; it holds pushed weights on their way."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What `connect` did, so that `disconnect` can undo just that."""

    connected: bool
    """This object connected to Ray; False: the process was connected already."""
    started: bool
    """The cluster is ours."""


def connect(address: str | None, namespace: str, log_to_driver: bool = False) -> Connection:
    """Connect this process to Ray.

    `address` is "host:port", "auto" (a cluster on this machine), or None: the process's present
    connection, else the environment's RAY_ADDRESS, else a new cluster on this machine.
    Raises `FleetError` in one line, within seconds.
    """
    if address is None and ray.is_initialized():
        return Connection(connected=False, started=False)
    address = address or os.environ.get("RAY_ADDRESS")
    if ray.is_initialized():
        _check_same(str(address))
        return Connection(connected=False, started=False)
    quiet = {"logging_level": logging.ERROR, "log_to_driver": log_to_driver}
    if address is None:
        # On a machine of our own Ray's count of CPUs has no meaning; each counted one would be a
        # Python worker started in advance.
        ray.init(
            "local",
            namespace=namespace,
            num_cpus=1,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            **quiet,
        )
        return Connection(connected=True, started=True)
    _probe(address)
    try:
        ray.init(address, namespace=namespace, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise FleetError(f"no Ray cluster at {address!r}: {_first_line(error)}") from error
    return Connection(connected=True, started=False)


def disconnect(connection: Connection) -> None:
    """Undo `connect`."""
    if connection.connected and ray.is_initialized():
        ray.shutdown()


def _check_same(address: str) -> None:
    present = ray.get_runtime_context().gcs_address
    if address not in ("auto", present):
        raise FleetError(f"this process is connected to Ray at {present}, not at {address!r}")


def _probe(address: str) -> None:
    if address in ("auto", "local"):
        return
    host, colon, port = address.rpartition(":")
    if "://" in address or not colon or not port.isdigit():
        raise FleetError(f"Ray address {address!r} is not valid; valid: host:port, or auto")
    try:
        socket.create_connection((host, int(port)), PROBE_TIMEOUT_S).close()
    except (OSError, OverflowError) as error:
        raise FleetError(f"no Ray cluster at {address!r}: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
