"""The sidecar gateway: clients speak HTTP to it as they would to an engine."""
