"""The APIs that are understood: how a request is cut into asks, and how their answers are joined.

A request is understood if every field of it is known and valid here.  Anything else is sent on as
it came, to one engine, and its answer goes back as it is.
"""

from steersman.controller.gateway.forms import chat, completions, generate
from steersman.controller.gateway.question import Form
from steersman.mechanisms.http_vllm import dialects

FORMS: dict[str, Form] = {
    dialects.COMPLETIONS_PATH: completions.FORM,
    dialects.CHAT_PATH: chat.FORM,
    dialects.GENERATE_PATH: generate.FORM,
}
"""By the path of the request."""
