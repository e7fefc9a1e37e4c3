"""A fleet in virtual time: the event core that replay, tuning and tournaments run on.

`spec` says what goes in and comes out, `core` is the fleet, `_kernel` is its physics (compiled),
`reference` is the same in plain Python, slow and meant to be read, `benchmark` measures.
"""
