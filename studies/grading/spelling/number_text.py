"""Rewrites the spellings of numbers to one: ASCII digits, a point, `1/2`, `e5`, and a sign that says `no number can be read here`.

Guarantees that a value which is more than its digits is not read as its digits: the angle `\\frac{\\pi}{6}` is not 6, `\\pm 17` not 17,
`473_9` not 473, `2^{100}` not 2, `12:30` not 30. They become `UNREADABLE`. Digit groups of other conventions (`1.234,56`, `1 234`,
`12,34,567`, `1'234`) and repeating decimals become plain ones.
"""

from __future__ import annotations

import re
from fractions import Fraction

from .answer_text import plain_signs

UNREADABLE = "\ue000"
"""Stands for a quantity of which no number can be read."""

_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2212\ufe63\uff0d\u2010\u2011\u2013", "-"),
        **{
            sign: f" {n}/{d}"
            for sign, n, d in zip("½¼¾⅓⅔⅛⅜⅝⅞⅕⅖⅗⅘⅙⅚", "113121357123415", "244338888555566", strict=False)
        },
        "\u2044": "/",
        "\u2215": "/",
        "\uffe5": "¥",
        "٫": ".",
        "٬": ",",
        "،": ",",
        "٪": "%",
        "⁺": "+",
    }
)
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_RAISED_FRACTION = re.compile("([⁰¹²³⁴⁵⁶⁷⁸⁹]+)[⁄/]([₀₁₂₃₄₅₆₇₈₉]+)")
_SUPERSCRIPT_RUN = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")

_NARROW = "\u00a0\u2009\u202f\u2007\u2002\u2005"
_LATEX_SPACE_IN_NUMBER = re.compile(rf"(?<=[0-9])(?:\\[,;:!]|[{_NARROW}]|~)(?=[0-9]{{3}}(?![0-9]))")
_SPACED_GROUPS = re.compile(
    r"(?<![0-9A-Za-z.,/:'$^_)\]}])(?<![0-9][ ])([1-9][0-9]{0,2}(?:[ ][0-9]{3})+)(?![0-9]|[ ][0-9]|[ ]?/)"
)
_SPACE_BEFORE_THOUSANDS = re.compile(r"(?<=[0-9])[ ](?=(?:[0-9]{3}[ ])*000(?![0-9]))")
_UNDERSCORED_GROUPS = re.compile(r"(?<![\w.,}])([1-9][0-9]{0,2}(?:_[0-9]{3})+)(?![0-9_])")
_LATEX_COMMA = re.compile(r"\{,\}(?:\\!)?|,\\!")
_LATEX_POINT = re.compile(r"(?<=[0-9])\{\.\}(?=[0-9])")

_SIGNED = r"[-+]?\s*[0-9]+(?:\.[0-9]+)?"
_LATEX_FRACTION = re.compile(
    rf"(?:(?<![A-Za-z0-9])(?P<whole>[0-9])\s*)?\\[dtc]?frac\s*(?:\{{\s*(?P<n>{_SIGNED})\s*\}}|(?P<n1>[0-9]))"
    rf"\s*(?:\{{\s*(?P<d>{_SIGNED})\s*\}}|(?P<d1>[0-9]))"
)
_BRACKETED_FRACTION = re.compile(r"\(\s*(-?\s*[0-9]+)\s*\)\s*/\s*\(?\s*([0-9]+)\b\s*\)?")
_TWICE_NEGATIVE = re.compile(r"(?<![\w)])-\s*-(?=[0-9]+/[0-9])")
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_OTHER_FRACTION = re.compile(
    rf"\\[dtc]?frac\s*(?:{_GROUP}|[0-9A-Za-z]|\\[A-Za-z]+)\s*(?:{_GROUP}|[0-9A-Za-z]|\\[A-Za-z]+)"
)
_ROOT = re.compile(
    rf"\\sqrt\s*(?:\[[^\]\n]{{0,20}}\])?\s*(?:{_GROUP}|[0-9A-Za-z])|[√∛]\s*(?:\([^()\n]*\)|[0-9.]+|[A-Za-z])?|\bsqrt\s*\([^()\n]*\)"
)
_SYMBOL = re.compile(
    r"\\(?:pi|infty|theta|alpha|beta|gamma|delta|lambda|mu|phi|omega|sigma|log|ln|lg|sin|cos|tan|cot|sec|csc|binom|overline|bar|dots|ldots|cdots)(?![A-Za-z])\s*"
    rf"(?:_?{_GROUP}|_[0-9])?|[π∞θ]"
)
_REPEATING = re.compile(
    r"(?<![0-9.,])(?P<whole>[0-9]*)\.(?P<first>[0-9]*)"
    r"(?:\\(?:overline|bar|dot|overbar)\s*\{(?P<a>[0-9]{1,40})\}|\\(?:bar|dot)\s*(?P<b>[0-9])|\((?P<c>[0-9]{1,40})\)|(?P<d>[0-9])[\u0304\u0305\u0307])(?![0-9])"
)
_PLUS_MINUS = re.compile(r"(?:±|∓|\\pm(?![a-z])|\\mp(?![a-z])|\+/-|\+\\?/\\?-)\s*[$]?\s*")
_NEGATIVE = re.compile(r"\b(?:negative|(?<![0-9)][ ])minus)[ ]+(?=[0-9$.])", re.IGNORECASE)
_INEQUALITY = re.compile(r"\\(?:leq?|geq?|neq?|lt|gt|leqslant|geqslant)(?![A-Za-z])")
_LATEX_COMMAND = re.compile(r"\\[A-Za-z]+")
_TIMES_POWER_OF_TEN = re.compile(
    r"(?<=[0-9])\s*(?:×|x|\*|·|⋅|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*(?:\{\s*([-+]?[0-9]{1,3})\s*\}|\(\s*([-+]?[0-9]{1,3})\s*\)|([-+]?[0-9]{1,3}))(?![0-9])"
)
_POWER = re.compile(
    r"(?<![0-9.,A-Za-z])(?:(?P<base>[0-9]{1,4})|\(\s*(?P<signed>-?\s*[0-9]{1,4})\s*\))(?:\s*\^\s*|\*\*(?=[-({0-9]))"
    r"(?:\{\s*(?P<a>-?[0-9]{1,2})\s*\}|\(\s*(?P<b>-?[0-9]{1,2})\s*\)|(?P<c>-?[0-9]{1,2}))(?![0-9])"
)
_OTHER_POWER = re.compile(
    rf"(?<![0-9.])[0-9.]*[0-9)](?:\s*\^\s*|(?<=[0-9])\*\*(?=[-({{0-9a-z]))(?:{_GROUP}|\([^()\n]*\)|-?[0-9A-Za-z]+)"
)
_BASE = re.compile(r"(?<![A-Za-z_^{.0-9])[0-9][0-9A-F.]*_\s*(?:\{?\s*(?:\\text\s*\{[^{}]*\}|[0-9]+|[a-z]{3,10})\s*\}?)")
_RATIO_OR_TIME = re.compile(
    r"(?<![0-9A-Za-z:.])[0-9]+(?:\.[0-9]+)?[ ]?:[ ]?[0-9]+(?:\.[0-9]+)?(?:[ ]?:[ ]?[0-9]+)*(?![0-9]|[ ]*[*+×/=])"
)
_FORMULA = re.compile(
    r"\$\$([^$]{1,400})\$\$|\$([^$\n]{1,400})\$|\\\(([^\n]{1,400}?)\\\)|\\\[(.{1,400}?)\\\]", re.DOTALL
)
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox|operatorname|boxed|fbox)\s*\{[^{}]*\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_LONE_LETTER = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_UNIT_LETTER = re.compile(r"(?<=[0-9])[ ~]*(?:\\[,; ])?[ ]*[mgshLlJNWKCFV](?:\^\{?[23]\}?)?[\s.]*$")
_RELATION = re.compile(r"=|≈|\\approx(?![a-z])|\\Rightarrow|→|\\to(?![a-z])|\\implies")


def number_text(text: str) -> str:
    """A text in which every number is spelled plainly; other LaTeX commands become blanks."""
    text = plain_signs(text).translate(_CHARACTERS)
    text = _RAISED_FRACTION.sub(lambda f: f" {f[1].translate(_SUPERSCRIPTS)}/{f[2].translate(_SUBSCRIPTS)}", text)
    text = _SUPERSCRIPT_RUN.sub(lambda run: "^" + run[0].translate(_SUPERSCRIPTS), text)
    text = _SUBSCRIPT_RUN.sub(lambda run: "_" + run[0].translate(_SUBSCRIPTS), text)
    text = text.replace(r"\$", "\ue001").replace(r"\%", "%").replace(r"\left", "").replace(r"\right", "")
    text = _FORMULA.sub(_of_formula, text).replace("\ue001", "$")
    text = _LATEX_COMMA.sub(",", _LATEX_POINT.sub(".", text))
    text = _LATEX_SPACE_IN_NUMBER.sub("", text)
    text = _SPACE_BEFORE_THOUSANDS.sub("", text)
    text = _SPACED_GROUPS.sub(lambda groups: groups[1].replace(" ", ""), text)
    text = _UNDERSCORED_GROUPS.sub(lambda groups: groups[1].replace("_", ""), text)
    text = _REPEATING.sub(_repeating, text)
    text = _LATEX_FRACTION.sub(_slash, text)
    text = _TWICE_NEGATIVE.sub("", text)
    text = _BRACKETED_FRACTION.sub(lambda f: f"{f[1].replace(' ', '')}/{f[2]}", text)
    text = _TIMES_POWER_OF_TEN.sub(lambda power: f"e{power[1] or power[2] or power[3]}", text)
    text = _POWER.sub(_power, text)
    for pattern in (_OTHER_FRACTION, _ROOT, _SYMBOL, _PLUS_MINUS, _BASE, _OTHER_POWER, _RATIO_OR_TIME):
        text = pattern.sub(UNREADABLE, text)
    text = _NEGATIVE.sub("-", _INEQUALITY.sub("<", text))
    return _LATEX_COMMAND.sub(" ", text)


def _of_formula(formula: re.Match[str]) -> str:
    """A formula as it stands, or `UNREADABLE` where its last side has a variable."""
    content = next(group for group in formula.groups() if group is not None)
    bare = _TEXT_COMMAND.sub(" ", content)
    if _WORD.search(_LATEX_COMMAND.sub(" ", bare)):  # words: two currency signs, not a formula
        return formula[0]
    side = _UNIT_LETTER.sub("", _RELATION.split(bare)[-1])
    return f" {UNREADABLE} " if _LONE_LETTER.search(_LATEX_COMMAND.sub(" ", side)) else formula[0]


def _slash(fraction: re.Match[str]) -> str:
    whole = f"{fraction['whole']} " if fraction["whole"] else ""
    before = fraction.string[: fraction.start()][-1:]
    apart = " " if before.isalnum() else ""  # after a letter or a name's digit it is a number of its own
    above = "".join((fraction["n"] or fraction["n1"]).split())
    below = "".join((fraction["d"] or fraction["d1"]).split())
    negative = (above[0] == "-") != (below[0] == "-")
    above, below = above.lstrip("+-"), below.lstrip("+-")
    if "." in above + below:
        if not Fraction(below):
            return UNREADABLE
        ratio = Fraction(above) / Fraction(below)
        above, below = str(ratio.numerator), str(ratio.denominator)
    if negative and whole:
        return UNREADABLE
    return f"{apart}{'-' if negative else ''}{whole}{above}/{below}"


def _repeating(decimal: re.Match[str]) -> str:
    """The fraction that a repeating decimal is."""
    block = decimal["a"] or decimal["b"] or decimal["c"] or decimal["d"]
    whole, first = decimal["whole"] or "0", decimal["first"] or ""
    value = Fraction(int(whole + first + block) - int(whole + first), 10 ** len(first) * (10 ** len(block) - 1))
    return f"{value.numerator}/{value.denominator}" if value.denominator > 1 else str(value.numerator)


def _power(power: re.Match[str]) -> str:
    base = int((power["base"] or power["signed"]).replace(" ", ""))
    exponent = int(power["a"] or power["b"] or power["c"])
    if exponent >= 0:
        return str(base**exponent)
    if not base:
        return UNREADABLE
    value = Fraction(1, base**-exponent)
    return f"{value.numerator}/{value.denominator}" if value.denominator > 1 else str(value.numerator)
