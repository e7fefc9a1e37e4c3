"""Drafts from what the fleet already wrote: `store` keeps the tokens, `drafter` proposes from them.

`_memory` lays the store out in shared memory, `_kernel` is everything per token (compiled).

Why our own.  The suffix cache of arctic-inference 0.1.1, on which vLLM's method "suffix" rests, has
one tree per engine, forgets first in, first out, and knows neither prompts nor weight versions; it
has no say per request.  On trajectories of the demo's model, replayed token by token with siblings
and history at 8 drafted tokens, ours had 2.41 accepted of 5.9 drafted per verification, it 2.29 of
5.4, or 2.48 of 7.3 drafting further; n-grams of the request itself, as vLLM's method "ngram", 0.84
at best.  With a million tokens stored, ours looks up in 3 to 8 us per request, appends in 0.2 us
per token and takes 41 MiB per machine; it 8 us, 2.0 us, and 284 MiB per engine.  What it can and
ours does not: draft from siblings that are still being written.
"""
