# SkyRL starts the engines: one line. The gateway is started before them, on loopback.
uv run -m skyrl.train.entrypoints.main_base \
  trainer.override_entrypoint=steersman.controller.sidecar.skyrl \
  "$@"

# Engines started elsewhere (python -m skyrl.backends.skyrl_train.inference_servers.vllm_server_actor,
# behind `steersman serve --engines http://10.0.0.1:8000 http://10.0.0.2:8000`): four lines instead.
#   generator.inference_engine.run_engines_locally=false
#   trainer.placement.colocate_all=false
#   generator.inference_engine.external_proxy_url=http://127.0.0.1:8100
#   generator.inference_engine.external_server_urls='["http://127.0.0.1:8100/engines/engine-0","http://127.0.0.1:8100/engines/engine-1"]'
# What will work: steersman attach --check skyrl --url http://127.0.0.1:8100
