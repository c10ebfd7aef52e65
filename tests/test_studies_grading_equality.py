"""The one equality of answers: many spellings of one answer, answers that look alike and differ, and that it is an equivalence."""

from __future__ import annotations

import itertools

import pytest

from precollapse.studies.grading import math_equality
from precollapse.studies.grading.graders import answer_class, grade
from precollapse.studies.grading.math_equality import expressions_equal

SPELLINGS = r"""
(3, \frac{\pi}{2}) | \left( 3, \frac{\pi}{2} \right) | (3,\pi/2) | \left(3,\dfrac{\pi}{2}\right) | (3, \frac\pi2) | ( 3 , 0.5\pi ) | (3, π/2) | (3, \frac{1}{2}\pi)
p - q | -q+p | p-q | -(q-p) | f(x)=p-q
\frac{14}{3} | 14/3 | 4\frac{2}{3} | 4 2/3 | \dfrac{14}{3} | x=\frac{14}{3} | \frac{28}{6} | 4.\overline{6}
\text{Evelyn} | Evelyn | \text{ Evelyn } | evelyn | \mathrm{Evelyn}
90^\circ | 90 | 90^{\circ} | 90° | 90\text{ degrees} | 90 degrees | \theta = 90^\circ
3\sqrt{13} | 3 \sqrt{13} | \sqrt{117} | 3\sqrt13 | 3√13 | 3\cdot\sqrt{13} | 3*sqrt(13)
6 - 5i | -5i+6 | 6-5i | z = 6 - 5i
1,-2 | -2, 1 | \{1,-2\} | x=1 \text{ or } x=-2 | 1 \text{ and } -2 | 1 and -2 | x = 1, -2 | -2,1
52_8 | 52_{8} | 52 | 52_{\text{eight}} | 52\text{ base }8 | 52_{\text{8}}
1 \pm \sqrt{19} | 1+\sqrt{19}, 1-\sqrt{19} | 1\pm\sqrt{19} | x = 1 \pm \sqrt{19} | 1 ± √19 | \{1-\sqrt{19},1+\sqrt{19}\}
\text{east} | east | East | \text{East}
2k+2 | 2(k+1) | 2k + 2 | n=2k+2
\begin{pmatrix} -1/3 \\ 2/3 \\ 5/3 \end{pmatrix} | \begin{pmatrix} -\frac13 \\ \frac23 \\ \frac53 \end{pmatrix} | \begin{bmatrix} -1/3 \\ 2/3 \\ 5/3 \end{bmatrix} | (-\frac13,\frac23,\frac53)
(a+5)(b+2) | ab+2a+5b+10 | (b+2)(a+5)
(3,4] | \left(3,4\right] | 3 < x \le 4 | x \in (3,4] | (3, 4] | 4 \ge x > 3
x^5 - x^4 + x^3 - x^2 + x - 1 | -1 + x - x^2 + x^3 - x^4 + x^5 | (x-1)(x^4+x^2+1) | P(x) = x^5-x^4+x^3-x^2+x-1
\cot x | \frac{\cos x}{\sin x} | \frac{1}{\tan x} | \cot(x) | \cot{x}
1+274i | 274i + 1
\text{even} | even | Even
-\frac{\pi}{6} | -\pi/6 | \frac{-\pi}{6} | -π/6 | -\frac{1}{6}\pi
12.5 | 12.5\% | 12.5%
0.5 | 0.5\% | \frac12 | 50\% | .5
\frac{1}{3} | 0.\overline{3} | 0.\bar{3} | 0.333\ldots | 1/3 | 33\frac{1}{3}\% | 0.(3)
\frac{1}{3^{70}} | 3^{-70}
2, 4, \ldots, 2n | 2,4,\dots,2n | 2, 4, ..., 2n
5 | 5\text{ cm} | 5 cm | 5\,\text{cm}^2 | \$5 | 5\text{ apples} | 5 \text{ square units} | x = 5 | 5.0 | \boxed{5} | 05 | 5.
5\text{ m} | 5 m | 5 meters | 5 | 5 \text{ metres} | 5\mathrm{m}
y=2x+3 | 2x+3 | 2x-y+3=0 | y = 3+2x | y-2x=3
x^2+y^2=1 | y^2=1-x^2 | x^2 + y^2 - 1 = 0 | 2x^2+2y^2=2
(-\infty, 2) \cup (3, \infty) | (3,\infty)\cup(-\infty,2) | x<2 \text{ or } x>3 | x \in (-\infty,2)\cup(3,\infty)
[2,\infty) | x \ge 2 | x\geq 2 | 2 \le x | [2, +\infty)
10! | 3628800 | 3,628,800 | 3{,}628{,}800 | 3\,628\,800
2^{10} | 1024 | 1,024
\binom{5}{2} | 10
\sqrt{2}+\sqrt{3} | \sqrt3+\sqrt2 | \sqrt{5+2\sqrt6}
\frac{\sqrt{3}}{3} | \frac{1}{\sqrt3} | \sqrt{\frac13} | √3/3
\sin 30^\circ | \frac12 | 0.5
3:2 | 3/2 | 1.5
x^3+3x-6 | 3x+x^3-6 | x^{3}+3x-6 | x³ + 3x − 6
\emptyset | \varnothing | ∅
\frac{3}{56} | \frac{3}{56}. | 3/56 | \frac{-3}{-56}
6.02 \times 10^{23} | 602\times 10^{21} | 6.02e23 | 6.02·10^23
x\sqrt{x} | x^{3/2} | x^{1.5}
\log_2 8 | 3
A = \pi r^2 | \pi r^2 | πr² | r^2\pi
\text{(B)} | B
\$1,250.50 | 1250.5 | 1250.50 | \$1250.50 | 1,250.50\text{ dollars}
(1,2),(3,4) | (3,4),(1,2) | \{(1,2),(3,4)\} | (1,2) \text{ and } (3,4)
-3 | −3 | x=-3 | -3.0
\frac{x+1}{x-1} | (x+1)/(x-1) | \frac{1+x}{x-1} | -\frac{x+1}{1-x}
e^{2x} | (e^x)^2 | \exp(2x)
"""
"""A gold answer and other spellings of it, a line each."""


@pytest.mark.parametrize("line", SPELLINGS.strip().split("\n"))
def test_spellings_of_one_answer(line: str) -> None:
    gold, *others = [part.strip() for part in line.split(" | ")]
    for other in others:
        assert expressions_equal(gold, other), (gold, other)
        assert answer_class("math500", other, gold) == answer_class("math500", gold, gold)


@pytest.mark.parametrize(
    ("gold", "answer", "equal"),
    [("50","50\\%",True),("12.5\\%","12.5",True),("0.125","12.5\\%",True),("33.3\\%","33.3",True),("7","7\\text{ percent}",True),("25\\%","25 \\%",True),("150\\%","1.5",True),("5","500\\%",True),("10","0.1\\%",False),
("110_2","110_{2}",True),("110_2","6",False),("1A_{16}","1a_{16}",True),("110_2","110_{10}",False),("\\pm 3","-3, 3",True),("\\pm 3","3",False),("3","\\pm 3",False),("2\\pm\\sqrt3","2+\\sqrt3",False),("x=\\pm 2","2,-2",True),
("0.\\overline{12}","\\frac{4}{33}",True),("0.1\\overline{6}","\\frac16",True),("0.\\overline{9}","1",True),("0.\\overline{3}","0.3",False),("0.\\overline{142857}","1/7",True),("2.\\overline{6}","8/3",True),
("\\frac{1}{2^{100}}","\\frac{1}{2^{101}}",False),("10^{-30}","10^{-31}",False),("10^{-30}","0",False),("\\frac{1}{10^{12}}","10^{-12}",True),("1-10^{-20}","1",False),("\\frac{1}{3^{70}}","3^{-70}",True),
("1, 2, \\ldots, 10","1, 2, \\dots, 10",True),("1,2,\\ldots,n","1,2,\\ldots,2n",False),("1, 3, 5, \\ldots","1, 3, 5, \\dots",True),("1,2,3,\\ldots","1,2,3",False),
("5\\text{ cm}","5",True),("5\\text{ cm}","5\\text{ cm}^2",False),("3\\text{ hours}","3 hours",True),("3\\text{ hours}","3\\text{ minutes}",False),("\\$5","5",True),("5\\text{ dollars}","\\$5",True),("\\$5","5\\text{ cents}",False),("10\\text{ square units}","10",True),("60\\text{ mph}","60",True),("60 \\text{ mph}","60\\text{ km/h}",False),("5\\text{ ft}","5 feet",True),("12\\pi\\text{ cm}^3","12\\pi",True),("30^\\circ","30\\text{ degrees}",True),("5\\ \\text{m/s}","5",True),
("[0,1]","0 \\le x \\le 1",True),("(0,1)","[0,1]",False),("\\{1,2,3\\}","3,2,1",True),("(1,2,3)","(3,2,1)",False),("\\frac{1}{\\sqrt2}","\\frac{\\sqrt2}{2}",True),("2^{1/2}","\\sqrt2",True),("\\sqrt{2}","1.41421356",False),("\\frac{22}{7}","\\pi",False),("\\text{(A)}","A",True),("\\text{yes}","Yes",True),("\\text{no}","yes",False),("x+y","y+x",True),("xy","yx",True),("x-y","y-x",False),("\\infty","-\\infty",False),("\\infty","+\\infty",True),("\\emptyset","\\{\\}",True),("x>3","(3,\\infty)",True),("x\\neq 3","x\\ne 3",True),("2n+1","2k+1",False),("\\sin^2 x+\\cos^2 x","1",True),("e^{\\ln 5}","5",True),("i^2","-1",True),("\\frac{1+i}{1-i}","i",True),("3\\times 10^5","300000",True),("1{,}234{,}567","1234567",True),("1\\,234","1234",True),("\\frac{3}{4}","0.75",True),("\\frac{3}{4}","0.7500",True),("-\\frac34","\\frac{-3}{4}",True),("\\dfrac{a}{b}","a/b",True),("\\left(\\frac12,3\\right)","(0.5,3)",True),("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}","\\begin{bmatrix}1&2\\\\3&4\\end{bmatrix}",True),("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}","\\begin{pmatrix}1&3\\\\2&4\\end{pmatrix}",False),("AB=5","5",True),("m\\angle A = 30^\\circ","30",True),("\\text{Area}=5","5",True),("x=1,y=2","y=2,x=1",True),("x=1,y=2","(1,2)",False)],
)  # fmt: skip
def test_pairs(gold: str, answer: str, equal: bool) -> None:
    assert expressions_equal(gold, answer) is equal


def test_equality_is_an_equivalence_and_grading_goes_by_it() -> None:
    answers = [
        "1/2",
        "0.5",
        ".5",
        "50\\%",
        "0.5\\%",
        "50",
        "x=0.5",
        "1",
        "\\pm 1",
        "1,-1",
        "(1,-1)",
        "-1, 1",
        "\\sqrt{2}",
        "1.41421356",
        "2^{1/2}",
        "x",
        "|x|",
        "2x/2",
        "y=x",
        "5 m",
        "5 cm",
        "5",
        "52_8",
        "52",
    ]
    for gold in answers:
        classes = {a: answer_class("math500", a, gold) for a in answers}
        for a, b, c in itertools.product(answers, repeat=3):
            if classes[a] == classes[b] and classes[b] == classes[c]:
                assert classes[a] == classes[c]
        for a in answers:
            assert grade("math500", f"\\boxed{{{a}}}", gold).correct is (classes[a] == classes[gold]), (gold, a)


def test_a_long_expression_is_compared_at_once() -> None:
    for text in (
        "+".join(f"x^{{{i}}}" for i in range(20_000)),
        "(" * 5000 + "x" + ")" * 5000,
        "\\frac{1}{" * 400 + "x" + "}" * 400,
        "x\0" * 9000,
        "9^{9^{9^{9}}}",
    ):
        assert not expressions_equal("x^2+1", text, seconds=1)
    assert expressions_equal("x+1", "1+x")
    assert math_equality.answer_key("x" * 20_000) == "spelled " + "x" * 20_000
