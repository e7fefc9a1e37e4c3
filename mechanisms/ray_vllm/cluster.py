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
HTTP2_SETTINGS = 4
HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(
    [0, 0, 0, HTTP2_SETTINGS, 0, 0, 0, 0, 0]
)
"""What a client says first: the preface and an empty settings frame (RFC 9113, 3.4)."""
OBJECT_STORE_BYTES = 200 << 20
"""Object store of a cluster started here; it holds pushed weights on their way."""

NICENESS = "RAY_worker_niceness"
"""Ray's variable for the niceness of its workers, 15 unless said otherwise: on a cluster of our own
any process of the machine would be served before the engines."""


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
            _system_config={} if NICENESS in os.environ else {"worker_niceness": 0},
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


def check_gpus(needed: float) -> None:
    """Refuse at once what this machine will never have; a cluster may still grow."""
    present = ray.cluster_resources().get("GPU", 0.0)
    if needed > present:
        raise FleetError(f"{needed:g} GPUs are needed and this machine has {present:g}")


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
        with socket.create_connection((host, int(port)), PROBE_TIMEOUT_S) as stream:
            if os.environ.get("RAY_USE_TLS", "0") in ("", "0"):
                _greet(stream)
    except (OSError, OverflowError) as error:
        raise FleetError(f"no Ray cluster at {address!r}: {_first_line(error)}") from error


def _greet(stream: socket.socket) -> None:
    """Check that HTTP/2 is spoken there, as Ray's (gRPC) server does; raises `OSError`."""
    stream.sendall(HTTP2_GREETING)
    answer = stream.recv(9)
    if len(answer) < 4 or answer[3] != HTTP2_SETTINGS:
        raise OSError("something else answers there")


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
