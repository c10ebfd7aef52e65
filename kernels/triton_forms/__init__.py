"""Triton forms of the operators, a file each; imported by the forms that `..` registers when one of them first runs.

Importing this package imports nothing of triton: where that is not installed, the operators work without.
"""
