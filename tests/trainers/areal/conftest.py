"""AReaL's modules warn while they are imported."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import areal.engine.vllm_remote
    import areal.infra.controller.rollout_controller  # noqa: F401
