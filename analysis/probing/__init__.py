"""Probes of captured states: what they predict, how they are fitted, and how the items are split.

Guarantees that everything a probe learns (scaling, layers, penalty, threshold) comes from training and validation items.
"""
