"""How answers are spelled: thinking and emphasis around them, words that announce them, formulas, digits and signs.

Guarantees that every reader of answers sees the same plain text: what one of them knows about a spelling, all know.
"""
