"""From what a caller gives to batches of token ids: inputs, rendering, options, spans and positions in the text, padding and the boundary.

Guarantees that everything about a prompt is settled, and refused where it cannot be used, before the model runs.
"""
