"""Brings the LaTeX and plain spellings of an expression to one form, and takes its unit, percent sign and base apart.

Guarantees that what is dropped does not change the value: spacing, sizes of brackets, `\\text{and}` for a comma, a unit of measure, a
currency sign. A unit that is known is kept beside the expression, so that `5 m` is told from `5 cm`.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

_WRAPPER = re.compile(
    r"\\(?:boldsymbol|bm|mathbf|mathit|mathsf|displaystyle|textstyle|underline|textbf|textit|boxed|fbox)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}"
)
_SIZE = re.compile(
    r"\\(?:left|right|bigl|bigr|Bigl|Bigr|big|Big|bigg|Bigg)(?![A-Za-z])\.?|\\(?:displaystyle|textstyle|limits|nolimits)(?![A-Za-z])"
)
_SPACE = re.compile(r"(?<!\\)\\[,;:! ]|\\q?quad(?![A-Za-z])|\\hspace\*?\{[^{}]*\}|(?<!\\)~|\\\n")
_AND = re.compile(
    r"(?:\\(?:text|mathrm|mbox)\s*\{\s*,?\s*(?:and|or)\s*\}|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|\\(?:lor|land|vee|wedge)(?![A-Za-z])|[;&](?!\s*\d+\s*\\))",
    re.IGNORECASE,
)
_DOTS = re.compile(r"\\(?:l|c)?dots[bcmio]?(?![A-Za-z])|…|⋯|\.{3,}")
_SIGNS = str.maketrans(
    {
        **dict.fromkeys("\u2212\ufe63\uff0d\u2010\u2011\u2013", "-"),
        "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "π": r"\pi ", "∞": r"\infty ", "±": r"\pm ", "∓": r"\mp ", "≤": r"\le ",
        "≥": r"\ge ", "≠": r"\ne ", "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ", "°": r"^\circ ", "⁄": "/", "ℝ": r"\mathbb{R} ",
        "θ": r"\theta ", "α": r"\alpha ", "β": r"\beta ", "λ": r"\lambda ", "\u00a0": " ", "\u2009": " ", "\u202f": " ", "′": "'", "’": "'",
    }
)  # fmt: skip
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPERSCRIPT_RUN = re.compile("[⁻⁺]?[⁰¹²³⁴⁵⁶⁷⁸⁹ⁿ]+")
_SUBSCRIPTS = str.maketrans("₀₁₂₃₄₅₆₇₈₉", "0123456789")
_SUBSCRIPT_RUN = re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_UNICODE_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|([0-9.]+|[A-Za-z]))")
_PLAIN_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)")
_PLAIN_FUNCTION = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|cot|sec|csc|ln|log|exp|pi|arcsin|arccos|arctan)(?![A-Za-z])")
_FRACTION_NAME = re.compile(r"\\[dtc]frac(?![A-Za-z])")
_SHORT_FRACTION = re.compile(r"\\frac\s*([0-9])\s*([0-9])|\\frac\s*([0-9])\s*(?=\{)")
_LETTER = r"[0-9]|\\(?:pi|theta|alpha|beta)(?![A-Za-z])"
_FRACTION_PARTS = re.compile(
    rf"\\frac\s*(?:\{{([^{{}}]*)\}}|({_LETTER}|(?<=[ ])[A-Za-z]))\s*(?:\{{([^{{}}]*)\}}|({_LETTER}|[A-Za-z]))"
)
_RELATIONS = tuple(
    (re.compile(pattern), sign)
    for pattern, sign in (
        (r"\\leq(?:slant)?(?![A-Za-z])|<=", r"\\le "),
        (r"\\geq(?:slant)?(?![A-Za-z])|>=", r"\\ge "),
        ("!=|≠|\\\\neq(?![A-Za-z])", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
    )
)
_LONE_LETTER = re.compile(r"^\s*\\text\s*\{\s*\(?([A-Za-z])\)?\s*\}\s*$")
_THOUSANDS = re.compile(r"(?<![0-9.,])([0-9]{1,3})((?:(?:,|\{,\}|\{,\}\\!)[0-9]{3})+)(?![0-9])")
_LATEX_THOUSANDS = re.compile(r"(?<=[0-9])(?:\{,\}|,\\!|\\,|\\!)(?=[0-9]{3}(?![0-9]))")
_VULGAR = re.compile("[½¼¾⅓⅔⅛⅜⅝⅞⅕⅖⅗⅘⅙⅚]")

_UNITS = {
    "mm": "millimeter millimetre", "cm": "centimeter centimetre", "dm": "decimeter decimetre", "m": "meter metre", "km": "kilometer kilometre",
    "in": "inch inches", "ft": "foot feet", "yd": "yard", "mi": "mile", "mg": "milligram", "g": "gram", "kg": "kilogram kilo", "lb": "pound lbs",
    "oz": "ounce", "ml": "milliliter millilitre", "l": "liter litre", "s": "second sec", "min": "minute mins", "h": "hour hr hrs", "day": "", "week": "",
    "month": "", "year": "yr yrs", "cent": "¢ ₵", "dollar": "usd $", "euro": "eur €", "rupee": "inr rs ₹", "mi/": "mph", "degree": "deg", "radian": "rad",
    "ton": "tonne", "gallon": "gal", "acre": "", "hectare": "ha", "n": "newton", "j": "joule", "w": "watt", "kw": "kilowatt", "hz": "hertz",
}  # fmt: skip
_UNIT_OF = {name: unit for unit, names in _UNITS.items() for name in (unit, *names.split())}
_TRAILING_TEXT = re.compile(
    r"(?P<unit>(?:\s*\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{[^{}]*\}|(?<=[0-9)}\s])[ ]*[A-Za-z¢]{2,}\.?(?:[ ]+[A-Za-z]{2,}\.?){0,4}|(?<=[0-9])[ ]+[mghsLl](?=\s*(?:\^|$))))"
    r"(?P<power>\s*\^\s*\{?\s*[23]\s*\}?)?(?P<more>\s*/?\s*(?:\\(?:text|mathrm)\s*\{[^{}]*\})?(?:\^\s*\{?-?[123]\}?)?)\s*\.?$"
)
_CURRENCY = re.compile(r"^([-+]?)\s*(?:\\\$|[$€£¥₹]|\\text\s*\{\s*\\?\$\s*\})\s*(?=[-\d.\\(])")
_DEGREE = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\\text\s*\{?)?[CF]?\}?$")
_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*\\?%\s*\}|\\text\s*\{\s*percent\s*\}|\bpercent)\s*$")
_BASE = re.compile(
    r"(?P<digits>-?[0-9A-Za-z]+(?:\.[0-9A-Za-z]+)?)\s*(?:_\s*(?:\{\s*(?:\\text\s*\{)?\s*(?:base\s*)?(?P<a>[0-9]{1,2}|[a-z]{3,10})\s*\}?\s*\}|(?P<b>[0-9]))|\s*\(?(?:\\text\s*\{)?\s*\(?base[- ]+\}?\s*(?P<c>[0-9]{1,2}|[a-z]{3,10})\)?\}?\)?)"
)
_NUMBER_WORDS = {
    w: n
    for n, w in enumerate(
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen".split()
    )
}


@dataclass(frozen=True)
class Spelled:
    """An expression in one form.

    Attributes
    ----------
    text : str
        Without unit, percent sign and base.
    unit : str
        Of a known unit its short name, with its power; "" for none or one that is not known.
    percent : bool
    base : int
        Of a numeral; 0 where it names none.
    """

    text: str
    unit: str = ""
    percent: bool = False
    base: int = 0


def spelled(expression: str) -> Spelled:
    """An expression with what stands beside its value taken apart."""
    text = one_form(expression)
    if base := _BASE.fullmatch(text):
        named = base["a"] or base["b"] or base["c"]
        number = int(named) if named.isdigit() else _NUMBER_WORDS.get(named, 0)
        if number >= 2:
            return Spelled(base["digits"].upper(), base=number)
    unit = ""
    if currency := _CURRENCY.match(text):
        unit = "dollar" if "$" in currency[0] else ""
        text = currency[1] + text[currency.end() :]
    percent = bool(_PERCENT.search(text))
    text = _PERCENT.sub("", text)
    if not re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text = _DEGREE.sub("", text)
    trailing = _TRAILING_TEXT.search(text)
    if (
        trailing
        and re.search(r"[0-9}]|\\pi", text[: trailing.start()])
        and not re.search(r"[=<>]|\\[lg]eq?", trailing["unit"])
    ):
        words = re.sub(r"\\(?:text|mathrm|mbox|textrm|operatorname)|[{}.,()]", " ", trailing["unit"]).lower().split()
        if "base" not in words:
            unit = _unit(words, (trailing["power"] or "") + (trailing["more"] or "")) or unit
            text = text[: trailing.start()]
    return Spelled(text.strip(), unit, percent)


def _unit(words: list[str], power: str) -> str:
    words = [part for word in words for part in re.split("(/)", word) if part]
    if "/" in words:
        power, words = power + "/", words[: words.index("/")]
    squared = 2 if {"square", "sq", "squared"} & set(words) else 3 if {"cubic", "cu", "cubed"} & set(words) else 1
    if raised := re.search("[23]", power):
        squared = int(raised[0])
    for word in words:
        for name in (word, word.removesuffix("s"), word.removesuffix("es")):
            if name in _UNIT_OF:
                per = (
                    "/" + words[words.index("per") + 1].removesuffix("s")
                    if "per" in words[:-1]
                    else ("/" if "/" in power else "")
                )
                return f"{_UNIT_OF[name]}{squared if squared > 1 else ''}{per}"
    return ""


def one_form(expression: str) -> str:
    """An expression with its LaTeX and typographic spellings brought to one."""
    text = "".join(c if not ("０" <= c <= "９") else chr(ord(c) - 0xFEE0) for c in expression)
    text = re.sub(r"(?![0-9])\d", lambda d: str(unicodedata.decimal(d[0])), text)
    text = _VULGAR.sub(lambda v: " " + unicodedata.normalize("NFKC", v[0]).replace("⁄", "/"), text)
    text = _SUPERSCRIPT_RUN.sub(lambda run: f"^{{{run[0].translate(_SUPERSCRIPTS)}}}", text)
    text = _SUBSCRIPT_RUN.sub(lambda run: f"_{{{run[0].translate(_SUBSCRIPTS)}}}", text)
    text = text.translate(_SIGNS)
    text = _UNICODE_ROOT.sub(lambda root: f"\\sqrt{{{root[1] or root[2]}}}", text)
    for _ in range(4):
        before = text
        text = _WRAPPER.sub(r"\1", text)
        if text == before:
            break
    text = _LONE_LETTER.sub(r"\1", text).replace(r"\varnothing", r"\emptyset")
    text = _LATEX_THOUSANDS.sub("", text)
    text = (
        _THOUSANDS.sub(lambda n: n[1] + n[2].replace(",", "").replace("{}", ""), text) if _is_one_number(text) else text
    )
    text = _SPACE.sub(" ", _SIZE.sub(" ", text))
    text = _DOTS.sub(r" \\ldots ", text)
    text = _AND.sub(",", text)
    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", text)
    text = _PLAIN_FUNCTION.sub(r"\\\1 ", text)
    text = _FRACTION_NAME.sub(r"\\frac", text).replace("\\lbrace", "\\{").replace("\\rbrace", "\\}")
    text = _SHORT_FRACTION.sub(lambda f: f"\\frac{{{f[1]}}}{{{f[2]}}}" if f[1] else f"\\frac{{{f[3]}}}", text)
    text = re.sub(r"\\sqrt\s*([0-9]+|[A-Za-z])", r"\\sqrt{\1}", text)
    text = _FRACTION_PARTS.sub(lambda f: f"\\frac{{{f[1] or f[2]}}}{{{f[3] or f[4]}}}", text)
    for pattern, sign in _RELATIONS:
        text = pattern.sub(sign, text)
    text = re.sub(r"\*\*", "^", text)
    return re.sub(r"\s+", " ", text).strip().strip("$").rstrip(".,;").strip()


def _is_one_number(text: str) -> bool:
    """Whether commas part groups of digits of one number, and not the members of a list."""
    return bool(
        re.fullmatch(
            r"[^0-9(\[{]*[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]+)?[^0-9,]*(?:\^\{?[23]\}?)?[^0-9,]*",
            text.replace(r"\{", "("),
        )
    )
