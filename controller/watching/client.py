"""Asks a gateway for its state, for viewers outside of it."""

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Mapping
from urllib.parse import urlsplit

import msgspec

from steersman.controller.gateway.security import secret
from steersman.controller.gateway.state import STATE_PATH, GatewayState, decode_state
from steersman.estimators.errors import FleetError, InvalidInputError

DEFAULT_URL = "http://127.0.0.1:8100"
"""Where a gateway listens unless it is told otherwise."""
PATIENCE_S = 10.0
"""For one answer; a gateway with ten thousand requests in flight takes some tens of ms."""


def token_of(file: str, environ: Mapping[str, str] = os.environ) -> str:
    """What opens a gateway: from a file, or else the environment; "" where there is neither."""
    return secret(file, "STEERSMAN_TOKEN", environ) or secret("", "STEERSMAN_ADMIN_TOKEN", environ)


class StateClient:
    """One gateway."""

    def __init__(self, url: str, token: str = "") -> None:
        self.url = clean_url(url)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def raw(self) -> bytes:
        """The state as JSON.

        Raises `InvalidInputError` if the gateway wants another token or is none, `FleetError` if it
        does not answer.
        """
        request = urllib.request.Request(self.url + STATE_PATH, headers=self._headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return bytes(answer.read())
        except urllib.error.HTTPError as error:
            error.close()
            raise _refused(self.url, error.code) from None
        except urllib.error.URLError as error:
            why = getattr(error.reason, "strerror", None) or error.reason
            raise FleetError(f"no gateway answers at {self.url}: {why}") from None
        except (OSError, http.client.HTTPException) as error:
            raise FleetError(f"no gateway answers at {self.url}: {error}") from None

    def state(self) -> GatewayState:
        """The state."""
        try:
            return decode_state(self.raw())
        except msgspec.MsgspecError as error:
            raise InvalidInputError(
                f"what answers at {self.url} is no gateway of this version: {error}"
            ) from None


def clean_url(url: str) -> str:
    """Without a trailing slash or the dashboard's path."""
    text = url.strip().rstrip("/").removesuffix("/dashboard")
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInputError(f"{url!r} is no gateway's URL; valid: {DEFAULT_URL}")
    return text


def _refused(url: str, status: int) -> InvalidInputError:
    if status in (401, 403):
        return InvalidInputError(
            f"the gateway at {url} wants its token; valid: STEERSMAN_TOKEN, or --token-file FILE"
        )
    return InvalidInputError(f"what answers at {url} is no gateway: status {status}")
