"""A fleet of vLLM engines as Ray actors.

`fleet` is the driver's side (it imports Ray), `actor` is the replica's side (only there, and only
once it runs, vLLM is imported).  Between them goes one kind of message, see `wire`.
"""
