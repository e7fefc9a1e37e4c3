"""prime-rl itself is on no registry; its rollouts come from verifiers, which is tested here.

verifiers imports the client of a sandbox service, which plays no part in its requests for tokens.
"""

import sys
import warnings
from types import ModuleType
from typing import Any


class Absent(ModuleType):
    """Stands for a package that is not used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (Exception,), {})


for name in ("prime_sandboxes", "prime_sandboxes.models"):
    sys.modules[name] = Absent(name)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import verifiers.v1.clients.train  # noqa: F401
