"""The section `gateway` of the configuration: where it listens, who may speak to it, its limits.

Secrets are never in it, since a configuration is written into traces: it names the files that hold
them.  The environment may hold them instead, in `STEERSMAN_TOKEN`, `STEERSMAN_ADMIN_TOKEN` and
`STEERSMAN_ENGINE_TOKEN`.
"""

from typing import Annotated, Literal

import msgspec

from steersman.controller._section import Section, check_number
from steersman.estimators.errors import InvalidInputError
from steersman.estimators.observation import Objective


class GatewayConfig(Section, frozen=True):
    """What `steersman serve` needs to know beside its engines."""

    host: str = "127.0.0.1"
    """Address to listen on.  Any that other machines reach needs a token, or `insecure`."""
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8100
    """0: any free one."""
    shadow_ports: bool = False
    """Whether each engine gets a port of its own after `port`, in the engines' order: requests
    there are steered like any other, control goes to that one engine."""
    token_file: str = ""
    """File with the token that requests must carry; empty and no STEERSMAN_TOKEN: none."""
    admin_token_file: str = ""
    """File with the token for control; it opens the rest as well.  Empty and no
    STEERSMAN_ADMIN_TOKEN: control is closed where requests need a token, else open."""
    engine_token_file: str = ""
    """File with the engines' API key; empty and no STEERSMAN_ENGINE_TOKEN: none is sent."""
    insecure: bool = False
    """Whether it may listen without a token where other machines reach it."""
    tls_cert: str = ""
    """File with the certificate chain (PEM); empty: no TLS."""
    tls_key: str = ""
    """File with the certificate's key; empty: it is in `tls_cert`."""
    control_paths: tuple[str, ...] = ()
    """The trainer's own control routes beyond vLLM's ("/init_broadcaster"), passed to all
    engines."""
    on_abort: Literal["return", "continue"] = "return"
    """What becomes of requests that a pause aborts: their partial answers go back, as an engine
    would do it; or they stay open and are continued after the pause."""
    may_defer: bool = False
    """Whether a request may be parked for a later step.  Its client waits: off unless the trainer
    goes on without it."""
    objective: Objective = Objective.BARRIER
    """barrier or stream: whether the trainer waits for a whole step or for the next groups."""
    max_queue: Annotated[int, msgspec.Meta(ge=1)] = 16_384
    """Samples that may wait for an engine; a request beyond it is answered with 429.  A step of a
    large run comes at once and must fit."""
    max_body_bytes: Annotated[int, msgspec.Meta(ge=1)] = 64 * 2**20
    """Of a request.  A thousand prompts of 8,000 token ids are 50 MB."""
    request_timeout_s: float = 14_400.0
    """From a request to the end of its answer.  The longest samples of a step take an hour, and
    may have to wait before."""
    stall_timeout_s: float = 60.0
    """An engine that runs requests, is not paused and tells nothing for so long is given up."""
    otel: bool = False
    """Whether each request becomes an OpenTelemetry span, sent where the OTEL_* variables say; it
    needs the extra `otel`."""
    drain_s: float = 30.0
    """For requests under way when the gateway is told to end; then they are aborted."""

    def __post_init__(self) -> None:
        check_number("request_timeout_s", self.request_timeout_s, above=0.0)
        check_number("stall_timeout_s", self.stall_timeout_s, above=0.0)
        check_number("drain_s", self.drain_s, least=0.0)
        if not self.host:
            raise InvalidInputError("host is empty; valid: an address or a name, such as 127.0.0.1")
        for path in self.control_paths:
            if not path.startswith("/") or {"{", "}", "?", "#"} & set(path):
                raise InvalidInputError(
                    f"control_paths holds {path!r}; valid: paths such as /init_broadcaster"
                )
