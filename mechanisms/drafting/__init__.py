"""Drafts from what the fleet already wrote: `store` keeps the tokens, `drafter` proposes from them.

`_memory` lays the store out in shared memory, `_kernel` is everything per token (compiled).
"""
