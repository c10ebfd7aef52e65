"""One equality of answers: every expression has one key, and two answers are equal when their keys are.

Guarantees that equality is an equivalence: what is equal to the same is equal to each other, for grading and for counting different
answers alike. The modules here run in the worker process (`math_worker`) and know nothing of it.
"""
