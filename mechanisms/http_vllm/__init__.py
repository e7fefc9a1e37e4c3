"""A fleet of vLLM servers, spoken to over HTTP."""
