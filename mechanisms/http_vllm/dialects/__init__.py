"""How to ask an engine, how to carry on where another one stopped, and how to read its events."""

COMPLETIONS_PATH = "/v1/completions"
CHAT_PATH = "/v1/chat/completions"
GENERATE_PATH = "/inference/v1/generate"
