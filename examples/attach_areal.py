"""AReaL: its engines (`python -m areal.engine.vllm_ext.areal_vllm_server`) stand behind

    steersman serve --engines http://10.0.0.1:8000 http://10.0.0.2:8000 gateway.shadow_ports=true

whose engines have the ports 8101 and 8102.  SPMD mode needs no code:

    AREAL_LLM_SERVER_ADDRS=127.0.0.1:8101,127.0.0.1:8102

With one controller, these lines go before the trainer is made, and `rollout.scheduling_spec` asks
for no GPU.  What will work: steersman attach --check areal --url http://127.0.0.1:8100
"""

from steersman.controller.sidecar import areal

areal.install(["127.0.0.1:8101", "127.0.0.1:8102"])
