"""Every pass of a model beyond the boundary: steps from a cache, greedy and sampled text, trees of branches, shared prompts.

Guarantees that nothing outside this folder runs a model on more than a prompt, so that steering, padding and long-context
rotary embeddings are handled in one place.
"""
