"""The key of an expression: two expressions are equal when their keys are the same text.

Guarantees an equivalence by construction, with exact rational values (`0.333333` is not `1/3`, `3^{-70}` not `3^{-71}`), and nothing guessed of
what cannot be parsed whole: its key is its spelling. Numbers that are not rational, and expressions with symbols, are told by their value to 50
digits, with symbols at three fixed points; expressions without logarithms or roots at points of both signs, so that `|x|` is not `x`.

Keys: `q:1/3` an exact number, `n:...` another one, `f:...` an expression with symbols, `e:...` an equation, `(…)` `[…)` pairs, points and
intervals, `{…}` sets, `w:...` words, `s:...` what cannot be parsed.
"""

from __future__ import annotations

import hashlib
import re
from fractions import Fraction
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy

from ..read_number import whole_number
from .spelled import Spelled, one_form, spelled

_DIGITS = 50
_MOST_CHARACTERS = 3_000
"""Of an expression that is parsed; a longer one is its spelling."""
_LARGEST_DENOMINATOR = 10**18
_POINTS = 3
_MOST_NESTED = 40

_OPENING = {"(": ")", "[": "]", r"\{": r"\}", r"\langle": r"\rangle"}
_TOKEN = re.compile(r"\\[{}]|\\langle|\\rangle|\\[A-Za-z]+|[()\[\]{}]|\\.|.", re.DOTALL)
_RELATION = re.compile(r"\\(?:le|ge|ne|in|equiv|approx|sim|to|mapsto)(?![A-Za-z])|[<>=]")
_LEFT_SIDE = re.compile(
    r"(?:\\(?:angle|measuredangle|text\s*\{[^{}]*\}|mathrm\s*\{[^{}]*\}|overline\s*\{[^{}]*\}|[a-z]+)\s*)?(?:m\s*\\angle\s*)?(?:[A-Za-z]{1,4}'*(?:_\{?[A-Za-z0-9]+\}?)?(?:\^\{-1\})?(?:\s*\([A-Za-z0-9, ]{1,9}\))?)?"
)
_MATRIX = re.compile(r"\\begin\{([pbvB]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end\{\1\}", re.DOTALL)
_WORDS = re.compile(
    r"(?:\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{([^{}\\$]*)\}|([A-Za-z][A-Za-z'-]*(?: [A-Za-z'-]+)*))\.?"
)
_SHORT_WORDS = frozenset("yes no odd one two six ten red mon tue wed thu fri sat sun true both".split())
_REPEATED_DECIMAL = re.compile(
    r"(-?[0-9]*)\.([0-9]*?)([0-9]{1,12}?)\3{2,}\s*\\ldots|(-?[0-9]*)\.([0-9]*?)([0-9]{2,12})\6\s*\\ldots"
)
_DECIMAL = re.compile(r"(?<![0-9A-Za-z.])([0-9]*)\.([0-9]+)(?![0-9.])")
_TRIG_DEGREE = re.compile(r"([0-9]+)\s*\^\s*\{?\s*\\circ\s*\}?")


def key(expression: str, gold: str | None = None) -> str:
    """The key of an answer.

    Parameters
    ----------
    expression : str
    gold : str, optional
        The gold answer of its item, which says what the answer may leave out: a unit, a percent sign, a base. An answer without
        them takes them from the gold answer; one with others than it is different.
    """
    answer = spelled(expression)
    return _key_beside(answer, answer if gold is None else spelled(gold))


def _key_beside(answer: Spelled, gold: Spelled) -> str:
    if answer.base or gold.base:
        base = answer.base or gold.base
        if answer.base or re.fullmatch(r"-?[0-9A-Za-z.]+", answer.text):
            return f"base {base}:{answer.text.upper()}" if base != 10 else _structure(answer.text)
    value = _structure(answer.text)
    if answer.percent != gold.percent:
        value = _percent_beside(value, _structure(gold.text), answer.percent)
    unit = answer.unit if gold.unit and answer.unit and answer.unit != gold.unit else ""
    return f"{value} {unit}" if unit else value


def _percent_beside(value: str, gold: str, percent: bool) -> str:
    """The key of a share: `12.5%` is 12.5 beside a gold answer of 12.5, and 0.125 beside one of 0.125."""
    if value == gold or not (value.startswith("q:") and gold.startswith("q:")):
        return value
    other = Fraction(value[2:]) / 100 if percent else Fraction(value[2:]) * 100
    return gold if other == Fraction(gold[2:]) else value


# --- structure --------------------------------------------------------------------------------------------------------


def _structure(text: str, depth: int = 0) -> str:
    text = text.strip()
    if not text or depth > _MOST_NESTED or len(text) > _MOST_CHARACTERS:
        return _as_spelled(text)
    if text == r"\emptyset":
        return "{}"
    if word := _word(text):
        return word
    if number := _number(text):
        return number
    if matrix := _MATRIX.fullmatch(text):
        rows = [
            [_structure(cell, depth + 1) for cell in row.split("&")]
            for row in re.split(r"\\\\", matrix[2])
            if row.strip()
        ]
        flat = [cell for row in rows for cell in row]
        return f"({', '.join(flat)})" if len(rows) == 1 or all(len(row) == 1 for row in rows) else f"matrix {rows}"
    parts = _split(text, ",")
    if parts is None:
        return _as_spelled(text)
    if len(parts) > 1:
        return _list([part for part in parts if part.strip()], depth)
    if r"\ldots" in text and "," not in text:
        return _as_spelled(text)
    if (relations := _relations(text)) is not None:
        return _relation(*relations, depth=depth)
    for operator in (r"\cup", r"\setminus", r"\cap"):
        members = _split(text, operator)
        if members and len(members) > 1:
            keys = [_structure(member, depth + 1) for member in members]
            return "union " + " ".join(sorted(set(keys))) if operator == r"\cup" else f"{operator} ".join(keys)
    if inner := _bracketed(text):
        opened, content, closed = inner
        elements = _split(content, ",")
        if elements and (len(elements) > 1 or opened == r"\{"):
            if opened == r"\{":
                return _list([e for e in elements if e.strip()], depth, is_set=True)
            opened, closed = ("(", ")") if opened == r"\langle" else (opened, closed)
            return f"{opened}{', '.join(_structure(e, depth + 1) for e in elements)}{closed}"
        if elements and opened in "([" and opened == {")": "(", "]": "["}.get(closed):
            return _structure(content, depth + 1)
    if r"\pm" in text or r"\mp" in text:
        both = [text.replace(r"\pm", a).replace(r"\mp", b) for a, b in (("+", "-"), ("-", "+"))]
        return _set([_structure(side.strip().removeprefix("+"), depth + 1) for side in both])
    return _scalar(text)


def _list(parts: list[str], depth: int, is_set: bool = False) -> str:
    if any(r"\ldots" in part for part in parts):
        return "sequence " + ", ".join(
            "..." if part.strip() == r"\ldots" else _structure(part, depth + 1) for part in parts
        )
    if not parts:
        return "{}"
    assigned = [_assignment(part) for part in parts]
    if all(assigned) and len({a[0] for a in assigned if a}) > 1:
        return "values " + ", ".join(sorted(f"{a[0]} = {_structure(a[1], depth + 1)}" for a in assigned if a))
    keys = [_structure(part, depth + 1) for part in parts]
    if all(re.fullmatch(r"[(\[].*[)\]]", k) and _RELATION.search(part) for k, part in zip(keys, parts, strict=True)):
        return "union " + " ".join(sorted(set(keys)))
    return _set(keys)


def _set(keys: list[str]) -> str:
    members: set[str] = set()
    for one in keys:
        members |= set(one[1:-1].split("; ")) if one.startswith("{") and len(one) > 2 else {one}
    return members.pop() if len(members) == 1 else f"{{{'; '.join(sorted(members))}}}"


def _assignment(part: str) -> tuple[str, str] | None:
    found = _relations(part)
    if found is None or found[1] != ["="] or not _is_name(found[0][0]):
        return None
    return re.sub(r"[\s{}]", "", found[0][0]), found[0][1]


def _is_name(side: str) -> bool:
    side = side.strip()
    return bool(side) and bool(_LEFT_SIDE.fullmatch(side)) and not re.fullmatch(r"\\(?:pi|infty|emptyset)|e", side)


def _relations(text: str) -> tuple[list[str], list[str]] | None:
    """The sides of a relation and the signs between them; None where there is no sign outside brackets."""
    sides, signs, level, current = [], [], 0, ""
    position = 0
    while position < len(text):
        sign = _RELATION.match(text, position) if level == 0 else None
        if sign:
            sides.append(current.strip())
            signs.append(sign[0])
            current, position = "", sign.end()
            continue
        token = _TOKEN.match(text, position)
        assert token is not None
        level += (token[0] in ("(", "[", "{", r"\{", r"\langle")) - (token[0] in (")", "]", "}", r"\}", r"\rangle"))
        current += token[0]
        position = token.end()
    return ([*sides, current.strip()], signs) if signs else None


def _relation(sides: list[str], signs: list[str], depth: int) -> str:
    if not all(sides) or any(sign in (r"\equiv", r"\sim", r"\to", r"\mapsto", r"\approx", r"\ne") for sign in signs):
        return (
            "s:"
            + "".join("".join(sides[:1]).split())
            + "".join(s + "".join(side.split()) for s, side in zip(signs, sides[1:], strict=True))
        )
    if signs == [r"\in"]:
        return _structure(sides[1], depth + 1)
    if set(signs) == {"="}:
        return _equation(sides, depth)
    if "=" in signs or r"\in" in signs:
        return _as_spelled(" ".join(a + b for a, b in zip(sides, [*signs, ""], strict=True)))
    return _inequality(sides, signs, depth)


def _equation(sides: list[str], depth: int) -> str:
    if len(sides) > 2:
        return _structure(sides[-1], depth + 1)
    left, right = sides
    if not re.search("[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", left)) and r"\text" not in left:  # 9 + 9 = 18
        return _structure(right, depth + 1)
    for name, value in ((left, right), (right, left)):
        if _is_name(name) and not (name is right and _is_name(left)) and not _mentions(value, name):
            return _structure(value, depth + 1)
    a, b = _parsed(left), _parsed(right)
    if a is None or b is None:
        return _as_spelled(f"{left}={right}")
    difference = sympy.together(a - b)
    difference = sympy.fraction(difference)[0]
    symbols = {str(s): s for s in difference.free_symbols}
    if symbols.keys() == {"x", "y"}:  # a line, solved for y
        slope = sympy.expand(difference).coeff(symbols["y"], 1)
        rest = sympy.expand(difference - slope * symbols["y"])
        if slope != 0 and not slope.free_symbols and symbols["y"] not in rest.free_symbols:
            return _value_key(-rest / slope)
    prints = _values(difference)
    if prints and all(value == 0 for value in prints):  # two forms of one expression
        return _structure(right, depth + 1)
    if not prints or prints[0] == 0:
        return _as_spelled(f"{left}={right}")
    return "e:" + " ".join(_number_key(value / prints[0]) for value in prints[1:])


def _mentions(value: str, name: str) -> bool:
    letter = re.sub(r"\(.*|[\s{}\\']", "", name)
    return bool(re.search(rf"(?<![A-Za-z\\]){re.escape(letter)}(?![A-Za-z])", re.sub(r"\\[A-Za-z]+", " ", value)))


def _inequality(sides: list[str], signs: list[str], depth: int) -> str:
    """An inequality on one symbol as its interval, any other one as its two sides in a fixed order."""
    if all(sign in (">", r"\ge") for sign in signs):
        sides, signs = sides[::-1], [{">": "<", r"\ge": r"\le"}[sign] for sign in signs[::-1]]
    if not all(sign in ("<", r"\le") for sign in signs) or len(sides) > 3:
        return _as_spelled(" ".join(a + b for a, b in zip(sides, [*signs, ""], strict=True)))
    keys = ["" if _is_name(side) else _structure(side, depth + 1) for side in sides]
    opened, closed = ("(" if signs[0] == "<" else "["), (")" if signs[-1] == "<" else "]")
    if len(sides) == 3 and not keys[1] and keys[0] and keys[2]:
        return f"{opened}{keys[0]}, {keys[2]}{closed}"
    if len(sides) == 2 and keys[0][:2] in ("q:", "n:") and not keys[1]:
        return f"{opened}{keys[0]}, n:oo)"
    if len(sides) == 2 and not keys[0] and keys[1][:2] in ("q:", "n:"):
        return f"(n:-oo, {keys[1]}{closed}"
    return (
        "inequality "
        + " ".join(
            f"{_structure(side, depth + 1)} {sign}" for side, sign in zip(sides, [*signs, ""], strict=True)
        ).strip()
    )


def _split(text: str, separator: str) -> list[str] | None:
    """The parts of a text between separators outside brackets; None where brackets do not match."""
    parts, current, open_brackets = [], "", 0
    for token in _TOKEN.finditer(text):
        if token[0] in ("(", "[", "{", r"\{", r"\langle"):
            open_brackets += 1
        elif token[0] in (")", "]", "}", r"\}", r"\rangle"):
            open_brackets -= 1
            if open_brackets < 0:
                return None
        if token[0] == separator and not open_brackets:
            parts.append(current)
            current = ""
        else:
            current += token[0]
    return None if open_brackets else [*parts, current]


def _bracketed(text: str) -> tuple[str, str, str] | None:
    """An expression whose first bracket closes at its end: the bracket, what is within, the closing one."""
    opening = next((o for o in _OPENING if text.startswith(o)), None)
    closing = next((c for c in _OPENING.values() if text.endswith(c)), None)
    if opening is None or closing is None:
        return None
    level, end = 0, 0
    for token in _TOKEN.finditer(text):
        level += (token[0] in ("(", "[", "{", r"\{", r"\langle")) - (token[0] in (")", "]", "}", r"\}", r"\rangle"))
        if level == 0:
            end = token.end()
            break
    return (opening, text[len(opening) : -len(closing)], closing) if end == len(text) else None


# --- scalars ----------------------------------------------------------------------------------------------------------


def _word(text: str) -> str | None:
    """The key of words; of two or three letters only those that are words, since `ab` is a product."""
    match = _WORDS.fullmatch(text)
    if not match:
        return None
    words = " ".join((match[1] or match[2] or "").split()).strip("() .").lower()
    is_word = (
        re.search("[a-z]{4}|[a-z]{2} [a-z]{2}", words)
        or words in _SHORT_WORDS
        or (match[1] is not None and len(words) != 1)
    )
    return f"w:{words}" if words and is_word else None


def _number(text: str) -> str | None:
    """The key of a plain number, exactly."""
    if repeated := _REPEATED_DECIMAL.fullmatch(text):
        whole, first, block = repeated.group(1, 2, 3) if repeated[3] else repeated.group(4, 5, 6)
        negative, whole = whole.startswith("-"), whole.lstrip("-") or "0"
        value = Fraction(int(whole + first + block) - int(whole + first), 10 ** len(first) * (10 ** len(block) - 1))
        return f"q:{-value if negative else value}"
    if "," in text or "'" in text or re.search(r"[0-9] [0-9]", re.sub(r"[0-9]+ [0-9]+/[0-9]+", "", text)):
        return None
    number = whole_number(text)
    return None if number is None else f"q:{number.value}"


def _scalar(text: str) -> str:
    expression = _parsed(text)
    return _as_spelled(text) if expression is None else _value_key(expression, text)


def _parsed(text: str) -> Any:
    """The sympy expression of a LaTeX text, or None where not all of it can be read as one."""
    if re.search(
        r"\\(?:ldots|pmod|bmod|mod|text|begin|mathbb|equiv|forall|exists|stackrel|to)(?![A-Za-z])|[?!]{2}|[:;&%#]|\.\.",
        text,
    ) and not _ratio(text):
        return None
    if ratio := _ratio(text):
        return ratio
    if re.search(r"(?<![\\A-Za-z])[A-Za-z]{4,}", text):
        return None
    text = _DECIMAL.sub(lambda d: f"\\frac{{{int((d[1] or '0') + d[2])}}}{{{10 ** len(d[2])}}}", text)
    if re.search(r"\\(?:sin|cos|tan|cot|sec|csc)", text):
        text = _TRIG_DEGREE.sub(r"(\\frac{\1\\pi}{180})", text)
    try:
        parsed = latex2sympy(text, is_real=None, normalization_config=None)
    except Exception:  # whatever a parser trips over
        return None
    if not isinstance(parsed, sympy.Expr):
        return None
    return parsed.subs({sympy.Symbol("i"): sympy.I, sympy.Symbol("i", real=True): sympy.I})


def _ratio(text: str) -> Any:
    match = re.fullmatch(r"\s*([0-9]+)\s*:\s*([0-9]+)\s*", text.replace("\\colon", ":"))
    return sympy.Rational(int(match[1]), int(match[2])) if match and int(match[2]) else None


def _value_key(expression: Any, text: str = "") -> str:
    try:
        values = _values(expression)
    except (TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        values = []
    if not values:
        return _as_spelled(text or str(expression))
    if not expression.free_symbols:
        return _number_key(values[0])
    positive = "+" if _needs_positive(expression) else ""
    keys = [_number_key(value) for value in values]
    if len(set(keys)) == 1:  # a constant in disguise, such as x/x
        return keys[0]
    symbols = ",".join(sorted(map(str, expression.free_symbols)))
    return f"f{positive}:{symbols}:" + " ".join(keys)


def _values(expression: Any) -> list[Any]:
    """The expression at the fixed points (at none where it has no symbols), exactly where it is rational."""
    symbols = sorted(expression.free_symbols, key=str)
    if not symbols:
        return [_evaluated(expression)]
    values = []
    for point in range(_POINTS):
        signs = 1 if _needs_positive(expression) or point == 0 else -1
        at = {s: _coordinate(str(s), point) * (signs if int(_digest(f"{s}{point}"), 16) % 2 else 1) for s in symbols}
        value = _evaluated(expression.subs(at))
        if value.has(sympy.nan, sympy.zoo) or value.free_symbols:
            return []
        values.append(value)
    return values


def _needs_positive(expression: Any) -> bool:
    powers = [p for p in expression.atoms(sympy.Pow) if p.free_symbols and not p.exp.is_integer]
    return bool(powers) or any(log.free_symbols for log in expression.atoms(sympy.log))


def _coordinate(symbol: str, point: int) -> Any:
    """A fixed rational in (0.3, 2.3), by symbol and point."""
    return sympy.Rational(int(_digest(f"{symbol}:{point}")[:8], 16) % 99_991 + 15_000, 50_021)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _evaluated(expression: Any) -> Any:
    value = expression.doit()
    if isinstance(value, sympy.Float) or value.atoms(sympy.Float):
        value = sympy.nsimplify(value, rational=True)
    if value.is_Rational or value in (sympy.oo, -sympy.oo):
        return value
    number = sympy.N(value, _DIGITS + 15, maxn=4 * _DIGITS)
    if not number.is_number or number.has(sympy.nan):
        raise ValueError("no value")
    return number


def _number_key(value: Any) -> str:
    real, imaginary = (value, sympy.S.Zero) if value.is_Rational or value.is_real else value.as_real_imag()
    if value in (sympy.oo, -sympy.oo):
        return f"n:{value}"
    parts = [_real_key(part) for part in (real, imaginary)]
    return parts[0] if parts[1] == "q:0" else f"{parts[0]} + {parts[1]}i"


def _real_key(value: Any) -> str:
    if value.is_Rational:
        return f"q:{value}"
    number = sympy.Float(value, _DIGITS + 15)
    if abs(number) < sympy.Float(10) ** -(2 * _DIGITS) or value == 0:
        return "q:0"
    near = sympy.Rational(str(number)).limit_denominator(_LARGEST_DENOMINATOR)
    if near != 0 and abs(number / near - 1) < sympy.Float(10) ** -_DIGITS:
        return f"q:{near}"
    return f"n:{sympy.Float(number, _DIGITS)}"


def _as_spelled(text: str) -> str:
    text = re.sub(r"\\(?:text|mathrm|mbox|textrm|operatorname)\s*\{([^{}]*)\}", r"\1", one_form(text))
    return "s:" + "".join(text.split()).replace("{", "").replace("}", "")
