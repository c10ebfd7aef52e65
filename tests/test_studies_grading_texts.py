"""Answers as models write them, each kind in many spellings, with what a person reads in them; None where a person would not say."""

from __future__ import annotations

import pytest

from precollapse.studies.grading.graders import Grade, grade

LETTERS = {"A": "36", "B": "300", "C": "12", "D": "7", "E": "5"}
WORDS = {"A": "It reflects light.", "B": "It absorbs heat.", "C": "It is a metal.", "D": "It floats."}

EMPHASIS = [
    ("math500", "We add.\nThe answer is **41**.", "41"),
    ("math500", "We add.\n**The answer is 41.**", "41"),
    ("math500", "We add.\n**Final answer:** 41", "41"),
    ("math500", "We add.\n***Answer:*** *41*", "41"),
    ("math500", "We add.\nAnswer: __41__", "41"),
    ("math500", "We add.\nAnswer: `41`", "41"),
    ("math500", "We add.\nAnswer: <b>41</b>", "41"),
    ("math500", "We add.\n### Final Answer\n**41**", "41"),
    ("math500", "We add.\n**Answer**\n\n$41$", "41"),
    ("math500", "We add.\n> **Answer: $41$**", "41"),
    ("math500", "We add.\n✅ **Answer: 41**", "41"),
    ("math500", "We add.\nSo the final answer is $\\boldsymbol{41}$.", "41"),
    ("math500", "We add.\nThe answer is \\textbf{41}.", "41"),
    ("math500", "We add.\nThe answer is **$\\frac{3}{7}$**.", "\\frac{3}{7}"),
    ("math500", "We add.\nTherefore, the answer is: **(2, 5)**.", "(2, 5)"),
    ("gsm8k", "We add.\nShe has **41** apples.", "41"),
    ("gsm8k", "We add.\nThe answer is **$1,041**.", "1041"),
    ("gsm8k", "Total: ***41***", "41"),
]


@pytest.mark.parametrize(("benchmark", "text", "answer"), EMPHASIS)
def test_emphasis_around_an_answer_is_no_part_of_it(benchmark: str, text: str, answer: str) -> None:
    result = grade(benchmark, text, answer)
    assert result.correct, result


@pytest.mark.parametrize(
    "text",
    ["Answer: **Lisbon**", "**Answer: Lisbon**", "So\nThe answer is **Lisbon**.", "The capital is found.\n\n**Lisbon**\n\nAnswer: *Lisbon*", "The answer is Lisbon because it is the capital.", "**Final Answer**\n\nLisbon", "I know this.\nFinal answer: `Lisbon`", "It is old.\nMy answer is \"Lisbon\".", "#### **Lisbon**", "\\boxed{\\text{Lisbon}}", "<think>Porto?</think>\nThe answer is Lisbon."],
)  # fmt: skip
def test_emphasis_around_words(text: str) -> None:
    assert grade("mine", text, "Lisbon").correct
    assert grade("mine", text.replace("Lisbon", "Port Said"), "port said").correct
    assert not grade("mine", text.replace("Lisbon", "Porto"), "Lisbon").correct


THINKING = [
    ("<think>Is it A? yes A.</think>Answer: B", "B"),
    ("<think>\nThe answer is A.\n</think>\n\n**B**", "B"),
    ("Is it A? The answer is A.\n</think>\nB", "B"),
    ("<thinking>A or C</thinking>\n(B)", "B"),
    ("<reasoning>\\boxed{A}</reasoning> \\boxed{B}", "B"),
    ("[THINK]The answer is A[/THINK]The answer is B.", "B"),
    (
        "<|channel|>analysis<|message|>Answer: A<|end|><|start|>assistant<|channel|>final<|message|>Answer: B<|return|>",
        "B",
    ),
    ("◁think▷Answer: A◁/think▷Answer: B", "B"),
    ("<|START_THINKING|>Answer: A<|END_THINKING|><|START_RESPONSE|>Answer: B<|END_RESPONSE|>", "B"),
    ("<|begin_of_thought|>Answer: A<|end_of_thought|><|begin_of_solution|>Answer: B<|end_of_solution|>", "B"),
    ("<think>Answer: A", None),
    ("<think>The answer is A. But wait", None),
    ("<think>Answer: A</think>", None),
    ("<think>one</think> hm <think>Answer: A", None),
    ("<|channel|>analysis<|message|>Answer: A", None),
    ("<seed:think>Answer: A</seed:think>B", "B"),
    ("<think></think>\n\nAnswer: B", "B"),
]


@pytest.mark.parametrize(("text", "answer"), THINKING)
def test_thinking_is_no_answer(text: str, answer: str | None) -> None:
    assert grade("aqua_rat", text, "A", LETTERS) == Grade(answer, False, answer is not None)
    numbers = text.replace("B", "22").replace("A", "11").replace("227", "B7")
    assert grade("gsm8k", numbers, "22").correct is (answer is not None)


RULED_OUT = [
    ("The answer cannot be A.", None),
    ("The answer can't be A, so it is C.", "C"),
    ("The answer cannot be A, so it must be C.", "C"),
    ("The answer must not be B.", None),
    ("It can't be A or B. It must be C.", "C"),
    ("The incorrect option is A.", None),
    ("The wrong answer is A.", None),
    ("Incorrect options: A, B and D. So the answer is C.", "C"),
    ("A, B and D are wrong, so C.", "C"),
    ("We can eliminate A and B. We can rule out D. The answer is C.", "C"),
    ("A is ruled out. B is ruled out. D is impossible. That leaves C.", "C"),
    ("The answer is neither A nor B nor D; it is C.", "C"),
    ("The answer isn't A; it's C.", "C"),
    ("The answer is not B but C.", "C"),
    ("It is definitely not A.", None),
    ("The answer is anything but A.", None),
    ("Option A is incorrect. Option B is incorrect. Option C is correct.", "C"),
    ("Option A is wrong.", None),
    ("A can be eliminated.", None),
    ("Not A.", None),
    ("The answer is C rather than A.", "C"),
    ("The answer is C, not A or B.", "C"),
    ("A) is too large. Not the answer.\nB) is wrong.\nAnswer: C", "C"),
    ("The best answer is C, since A cannot be right.", "C"),
    ("The answer would never be A.", None),
    ("A does not fit. B does not fit. The answer: C", "C"),
    ("We reject A. We reject B. We choose C.", "C"),
    ("Excluding A and B, the answer is C.", "C"),
]


@pytest.mark.parametrize(("text", "answer"), RULED_OUT)
def test_an_option_that_is_ruled_out_is_no_answer(text: str, answer: str | None) -> None:
    assert grade("aqua_rat", text, "A", LETTERS).answer == answer
    assert grade("arc_challenge", text, "A", WORDS).answer == answer


FORMULA_BOXES = [
    ("The energy is \\boxed{E = mc^2}. Answer: B", "B"),
    ("So \\boxed{\\Delta E} grows.\n\nAnswer: C", "C"),
    ("\\boxed{A = \\pi r^2}\nThe answer is D.", "D"),
    ("\\boxed{V = IR}, so the answer is (B).", "B"),
    ("\\boxed{C_6H_{12}O_6}\n\nAnswer: A", "A"),
    ("\\boxed{D + E = 12}. The correct option is C.", "C"),
    ("\\boxed{\\vec{B}} points up. Answer: D", "D"),
    ("\\boxed{300}\n\nAnswer: B", "B"),
    ("\\boxed{P(A) = 0.3}. Answer: B", "B"),
    ("\\boxed{A \\cap B}. The answer is D", "D"),
    ("\\boxed{\\text{B}}", "B"),
    ("\\boxed{\\textbf{(B)}\\ 300}", "B"),
    ("\\boxed{\\text{(B) } 300}", "B"),
    ("\\boxed{B: 300}", "B"),
    ("\\boxed{\\textbf{B}}. Here \\(E = 5\\).", "B"),
    ("\\boxed{A}\\boxed{B}", "B"),
    ("\\boxed{A or B}", None),
    ("\\boxed{E = mc^2}", None),
    ("\\boxed{\\Delta E}", None),
]


@pytest.mark.parametrize(("text", "answer"), FORMULA_BOXES)
def test_a_box_of_a_formula_beside_an_option(text: str, answer: str | None) -> None:
    assert grade("aqua_rat", text, "E", LETTERS).answer == answer


PEOPLE = [
    "A can do the work in 36 days.",
    "Therefore, B takes 12 days.",
    "A and B together take 12 days.",
    "So A has 300 dollars.",
    "B is 12 years old.",
    "Hence, C earns 300 a month.",
    "A runs faster, and B walks.",
    "Thus D finishes first.",
    "A, B and C invest 300, 200 and 100.",
    "In one day, B does 1/12 of the work.",
    "B travels 36 km from A to C.",
    "A's share is 300.",
    "Let A work alone for 12 days.",
    "Pipe A fills the tank in 12 hours.",
    "Car B is faster than car A.",
    "The point A(3, 4) lies on the line.",
    "The distance is AB = 12.",
    "A + B = 300",
    "B = 12 + 24",
    "So C gets 12 and D gets 7.",
    "Then A gives B 300.",
]


@pytest.mark.parametrize("text", PEOPLE)
def test_people_and_points_called_a_and_b_are_no_options(text: str) -> None:
    assert grade("aqua_rat", text, "A", LETTERS).answer is None
    assert grade("aqua_rat", f"{text}\nAnswer: E", "E", LETTERS).correct
    assert grade("aqua_rat", f"{text} The answer is (D).", "D", LETTERS).correct


CHEMISTRY = {"A": "C", "B": "NO_{2}", "C": "O_{2}", "D": "CO"}
TIMES = {"A": "6:00 A.M.", "B": "10:00 A.M.", "C": "1:00 P.M.", "D": "3:00 P.M."}
BLOOD = {"A": "type B", "B": "type A", "C": "vitamin D", "D": "vitamin C"}
BOTH = {"A": "iron", "B": "copper", "C": "Both A and B", "D": "Neither A nor B"}


@pytest.mark.parametrize(
    ("text", "choices", "answer"),
    [
        ("A) C", CHEMISTRY, "A"), ("The correct answer is A) C.", CHEMISTRY, "A"), ("Answer: A (C)", CHEMISTRY, "A"), ("(A) C", CHEMISTRY, "A"),
        ("A. C", CHEMISTRY, "A"), ("Answer: A: C", CHEMISTRY, "A"), ("**A) C**", CHEMISTRY, "A"), ("The answer is A - C.", CHEMISTRY, "A"),
        ("Answer: C) O_{2}", CHEMISTRY, "C"), ("\\boxed{A) C}", CHEMISTRY, "A"), ("Answer: **A** (C)", CHEMISTRY, "A"), ("A and C", CHEMISTRY, None),
        ("Answer: B (10:00 A.M.)", TIMES, "B"), ("The answer is B) 10:00 A.M.", TIMES, "B"), ("It opens at 10:00 A.M.", TIMES, None),
        ("B. 10:00 A.M.", TIMES, "B"), ("It opens at 6:00 A.M. and closes later. Answer: C", TIMES, "C"), ("The answer is D: 3:00 P.M., not 10:00 A.M.", TIMES, "D"),
        ("A: 6:00 A.M.", TIMES, "A"), ("At 6:00 a.m. it is dark. The answer is (A) 6:00 a.m.", TIMES, "A"),
        ("The answer is B) type A", BLOOD, "B"), ("Answer: A (type B)", BLOOD, "A"), ("The answer is D, vitamin C.", BLOOD, "D"), ("vitamin C", BLOOD, None),
        ("Since vitamin C helps, the answer is D.", BLOOD, "D"), ("Answer: C. vitamin D", BLOOD, "C"), ("type A", BLOOD, None),
        ("The answer is C) Both A and B", BOTH, "C"), ("Answer: D (Neither A nor B)", BOTH, "D"), ("Both A and B", BOTH, None), ("C", BOTH, "C"),
    ],
)  # fmt: skip
def test_an_option_whose_text_is_or_holds_a_letter(text: str, choices: dict[str, str], answer: str | None) -> None:
    assert grade("arc_challenge", text, "B", choices).answer == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("答案是C。", "C"), ("答案：C", "C"), ("最终答案为 C", "C"), ("正确答案是（C）。", "C"), ("正确选项是 C。", "C"), ("因此，答案选C。", "C"), ("故选C。", "C"),
        ("所以选择C", "C"), ("答案不是A，而是C。", "C"), ("我们排除A。答案是C。", "C"), ("**答案：C**", "C"), ("答え：C", "C"), ("答えはCです。", "C"), ("正解は C。", "C"),
        ("सही उत्तर C है।", "C"), ("उत्तर: C", "C"), ("सही विकल्प C है", "C"), ("अंतिम उत्तर: (C)", "C"), ("उत्तर है C", "C"),
        ("La respuesta es C.", "C"), ("Respuesta: C", "C"), ("La respuesta correcta es la opción C.", "C"), ("La respuesta final es **C**", "C"), ("La respuesta no es A, es C.", "C"),
        ("La réponse est C.", "C"), ("Réponse : C", "C"), ("La bonne réponse est la C.", "C"), ("La réponse correcte est (C).", "C"), ("La réponse finale est C", "C"),
        ("الإجابة هي C", "C"), ("الجواب: C", "C"), ("الإجابة الصحيحة هي (C).", "C"), ("الجواب الصحيح هو C", "C"), ("الإجابة النهائية: C", "C"),
        ("উত্তর: C", "C"), ("সঠিক উত্তর হল C।", "C"), ("উত্তর হল C", "C"), ("সঠিক উত্তর C", "C"), ("চূড়ান্ত উত্তর: C", "C"),
        ("A resposta é C.", "C"), ("Resposta: C", "C"), ("A resposta correta é a alternativa C.", "C"), ("A alternativa correta é C", "C"), ("A resposta final é **C**.", "C"),
        ("Ответ: C", "C"), ("Правильный ответ: C.", "C"), ("Правильный ответ — C", "C"), ("Верный ответ - C.", "C"), ("Итоговый ответ: C", "C"),
        ("جواب: C", "C"), ("صحیح جواب C ہے۔", "C"), ("درست جواب C", "C"), ("جواب ہے C", "C"), ("حتمی جواب: C", "C"),
        ("Jawaban: C", "C"), ("Jawabannya adalah C.", "C"), ("Jawaban yang benar adalah C.", "C"), ("Die Antwort ist C.", "C"), ("Antwort: C", "C"), ("Die richtige Antwort lautet C.", "C"),
    ],
)  # fmt: skip
def test_cues_of_many_languages(text: str, answer: str) -> None:
    assert grade("aqua_rat", text, "A", LETTERS).answer == answer


@pytest.mark.parametrize(
    "text",
    ["答案是18。", "最终答案：18", "所以她有18个苹果。", "答えは18です。", "उत्तर: १८", "सही उत्तर १८ है।", "La respuesta es 18.", "Respuesta final: 18", "La réponse est 18.", "Réponse : 18",
     "الإجابة هي ١٨", "الجواب: ١٨.", "উত্তর: ১৮", "উত্তর হল ১৮।", "A resposta é 18.", "Resposta: 18", "Ответ: 18", "Ответ: 18 яблок.", "جواب: ۱۸", "صحیح جواب ۱۸ ہے۔", "Jawaban: 18", "Die Antwort ist 18.",
     "คำตอบคือ ๑๘", "１８", "पहले ९, फिर १८", "𝟏𝟖"],
)  # fmt: skip
def test_numbers_in_many_languages_and_scripts(text: str) -> None:
    assert grade("gsm8k", text, "18") == Grade("18", True, True)
    assert grade("math500", f"x\n{text}", "18").correct


HEADINGS = [
    ("#### Step 1\n9 eggs.\n#### Step 2\n9*2=18\nThe answer is 18.", "18"),
    ("#### 1. Eggs\n9 eggs.\n#### 2. Money\n9*2=18", "18"),
    ("#### Step 1: count the 3 boxes\n3*6=18", "18"),
    ("#### Calculation\n5 boxes\n5+13=18", "18"),
    ("#### Part 2\nSo it is 18.", "18"),
    ("#### Cost of the 3 boxes and 4 bags:\n18 dollars", "18"),
    ("#### Solution\nTwo and 16 make 18", "18"),
    ("#### Question 7\n9*2 = 18", "18"),
    ("#### Paso 2\n9*2 = 18", "18"),
    ("#### 18\n#### Step 3 (check)\n18 - 9 = 9", "18"),
    ("#### Final Answer\n18", "18"),
    ("#### Answer: 18", "18"),
    ("#### The final answer is 18 dollars.", "18"),
    ("#### 18 eggs\nThat took 3 steps.", "18"),
    ("#### **18**", "18"),
    ("#### $18\nThat is 2 each.", "18"),
    ("#### Case 1\n5\n#### Case 2\n7\n\nTotal: 18", "18"),
    ("#### Given information\nThere are 5 hens.\n#### Conclusion\nShe earns 18.", "18"),
]


@pytest.mark.parametrize(("text", "answer"), HEADINGS)
def test_a_heading_is_no_mark(text: str, answer: str) -> None:
    assert grade("gsm8k", text, answer) == Grade(answer, True, True)


CHECKS = [
    ("The answer is \\boxed{18}. Check: 16-7=9.", "18"),
    ("\\boxed{18}\n\nTo verify: 18/2 = 9.", "18"),
    ("So \\(\\boxed{18}\\). Indeed 3*6 is 3 times 6.", "18"),
    ("$\\boxed{18}$ dollars for 3 days.", "18"),
    ("\\boxed{\\$18}. That took 4 steps", "18"),
    ("\\boxed{18 \\text{ eggs}}, 2 a day", "18"),
    ("First \\boxed{5}. No, wait. The answer is 18.", "18"),
    ("\\boxed{18} is the answer to question 3.", "18"),
    ("The answer is 18. Check: 16-7=9.", "18"),
    ("**Answer:** 18 dollars\n\nVerification: 9 + 9 is 2 times 9.", "18"),
    ("Final answer: 18 (9 eggs at 2 dollars)", "18"),
    ("The answer is 18 because 9 eggs cost 2 dollars each.", "18"),
    ("The answer is 9 * 2 = 18 dollars.\nThat took 2 steps.", "18"),
    ("The answer is 5? Let me count again: 9*2=18", "18"),
    ("The first answer is 5. The total is 18", "18"),
    ("The answer is 17. Wait, I made a mistake: it is 18", "18"),
    ("The answer is 17.\n\nActually, it is 9*2 = 18.", "18"),
]


@pytest.mark.parametrize(("text", "answer"), CHECKS)
def test_an_answer_before_its_check(text: str, answer: str) -> None:
    assert grade("gsm8k", text, answer) == Grade(answer, True, True)


NUMBERS = [
    ("$\\frac{-3}{4}$", "-3/4"), ("$\\frac{3}{-4}$", "-3/4"), ("$-\\frac{-3}{4}$", "3/4"), ("$\\dfrac{-12}{5}$", "-12/5"), ("$\\frac{ -3 }{ 4 }$", "-3/4"), ("(-3)/4", "-3/4"), ("−3/4", "-3/4"),
    ("$\\frac{1.5}{2}$", "3/4"), ("3.2×10⁻⁵", "0.000032"), ("10⁻³", "1/1000"), ("2⁻²", "1/4"), ("10^{-2}", "1/100"), ("5·10⁻¹", "0.5"), ("3.2 × 10^(-5)", "0.000032"), ("6.02×10²³", "602000000000000000000000"),
    ("¹⁄₂", "1/2"), ("³/₄", "3/4"), ("2¹⁄₂", "5/2"), ("(-2)^3", "-8"), ("2^{10}", "1024"),
    ("₹1,00,000", "100000"), ("12,34,567", "1234567"), ("Rs. 1,50,000.50", "150000.5"), ("₹ 12,34,56,789", "123456789"), ("1’234.50", "1234.5"), ("1'234'567", "1234567"), ("CHF 12'000", "12000"),
    ("1.234,56", "1234.56"), ("€ 1.234.567,89", "1234567.89"), ("1.234.567", "1234567"), ("1 234", "1234"), ("1 234 567", "1234567"), ("12 345,67", "12345.67"), ("1\u202f234", "1234"), ("1\u00a0234,5", "1234.5"),
    ("3,14", "3.14"), ("0,5", "0.5"), ("0,125", "0.125"), ("1,234", "1234"), ("1_000_000", "1000000"), ("١٢٬٣٤٥", "12345"), ("٣٫١٤", "3.14"),
    ("0.\\overline{3}", "1/3"), ("$0.1\\overline{6}$", "1/6"), ("0.(3)", "1/3"), ("2.\\overline{45}", "27/11"), ("0.\\bar{6}", "2/3"),
    ("negative 5", "-5"), ("minus 5 degrees", "-5"), ("16 minus 7 is 9", "9"),
]  # fmt: skip


@pytest.mark.parametrize(("written", "value"), NUMBERS)
def test_numbers_in_every_spelling(written: str, value: str) -> None:
    for text in (written, f"#### {written}", f"The slope is {written}.", f"\\boxed{{{written}}}"):
        result = grade("gsm8k", text, value)
        assert result.correct, (text, result)


NO_NUMBER = [
    "the angle is $\\frac{\\pi}{6}$.", "it is $3\\pi$", "it is 3π", "it is $2\\sqrt{6}$", "it is 2√6", "it is $\\sqrt{6}$", "it is ±6", "it is $\\pm 6$", "it is $36_6$", "it is 2^{6n}", "at 12:06", "the ratio is 5:6",
    "it is $x^2+6$", "it is \\(6x\\)", "it is $\\frac{x}{6}$", "it is \\[n-6\\]", "it is $\\log_2 6$", "it is $\\frac{\\sqrt{2}}{6}$", "it is 10^{600}",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_NUMBER)
def test_a_quantity_is_not_a_number_that_is_part_of_it(text: str) -> None:
    for benchmark in ("gsm8k", "math500"):
        result = grade(benchmark, f"There are 6 steps.\nHence {text}", "6")
        assert not result.correct, (benchmark, result)


FORMULAS = [
    ("Two lines.\nTherefore, the polynomial is $x^2+1$.", "x^2+1"),
    ("Two lines.\nHence the angle is $\\frac{\\pi}{6}$.", "\\frac{\\pi}{6}"),
    ("Two lines.\nSo we get \\(x^2+1\\).", "x^2+1"),
    ("Two lines.\nSo\n\\[x^2+1.\\]", "x^2+1"),
    ("Two lines.\nSo\n$$\nx^2+1\n$$", "x^2+1"),
    ("Two lines.\nThus $f(x) = x^2+1$.", "x^2+1"),
    ("Two lines.\nThe area is $A = \\pi r^2 = 9\\pi$.", "9\\pi"),
    ("Two lines.\nThe roots are $1$ and $-2$.", "1,-2"),
    ("Two lines.\nSo $x = 1$ or $x = -2$.", "1,-2"),
    ("Two lines.\nThe point is $(3, \\frac{\\pi}{2})$.", "(3,\\pi/2)"),
    ("Two lines.\nThe interval is $(3,4]$, as claimed.", "(3,4]"),
    ("Two lines.\nThe value of $x$ is $5$.", "5"),
    ("Two lines.\nWe find $180^\\circ - 120^\\circ = 60^\\circ$.", "60"),
    ("Two lines.\nThe answer is $x^2+1$ for all $x > 0$.", "x^2+1"),
    ("Two lines.\nFinal answer: the polynomial $x^2+1$.", "x^2+1"),
    ("Two lines.\nSo it is $2k+2$. This completes the proof.", "2k+2"),
    ("Two lines.\nIt costs $5 and they pay $3, so 8 in all", "8"),
    ("Two lines.\nSo \\boxed{1} and \\boxed{-2}.", "1,-2"),
]


@pytest.mark.parametrize(("text", "answer"), FORMULAS)
def test_the_last_formula_of_prose(text: str, answer: str) -> None:
    assert grade("math500", text, answer).correct


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("Two lines.\nTherefore, the polynomial is $x^2+1$.", "1"), ("Two lines.\nTherefore, the polynomial is x^2 + 1.", "1"), ("Two lines.\nSo it is 9*2.", "2"), ("Two lines.\nSo the point is (3, 4).", "4"),
        ("Two lines.\nThus $a=3$ and $b=4$.", "4"), ("Two lines.\nSo x > 5.", "5"), ("Two lines.\nSo $x \\ge 5$.", "5"), ("Two lines.\nHence it is 5x.", "5"), ("Two lines.\nHence it is 3 + 4i.", "4"),
        ("Two lines.\nThe roots are $1$ and $-2$.", "-2"), ("Two lines.\nSo it is $\\sqrt{5}$.", "5"), ("Two lines.\nSo it is $52_8$.", "52_9"), ("Two lines.\nSo it is $\\frac{x}{5}$.", "5"), ("Two lines.\nSo \\boxed{1} and \\boxed{-2}.", "-2"),
        ("Two lines.\nSo it is $x \\equiv 3 \\pmod{5}$.", "5"), ("Two lines.\nIt is 2^n.", "2"), ("Two lines.\nx = ±5", "5"),
    ],
)  # fmt: skip
def test_a_number_within_a_formula_is_no_answer(text: str, gold: str) -> None:
    assert not grade("math500", text, gold).correct


SECOND_THOUGHTS = [
    ("The answer is B. Wait, that's wrong. The answer is C.", "C"),
    ("Answer: B\n\nWait, let me recheck. It must be C.", "C"),
    ("The answer is B. Hold on, actually it is C.", "C"),
    ("The answer is B? No, C.", "C"),
    ("The answer is B. Wait, that fails.", None),
    ("The answer is B. Wait, let me double check. 6*50 = 300. Yes.", "B"),
    ("The answer is B. Wait, maybe C or D?", "B"),
    ("The answer is B. This is because A is not right.", "B"),
    ("Answer: B. Actually, let me verify: it is B.", "B"),
    ("Answer choices:\nA) 36\nB) 300\nC) 12\nD) 7\nE) 5\nWe compute 300.\nAnswer: B", "B"),
]


@pytest.mark.parametrize(("text", "answer"), SECOND_THOUGHTS)
def test_second_thoughts(text: str, answer: str | None) -> None:
    assert grade("aqua_rat", text, "A", LETTERS).answer == answer


NO_OPTION = [
    "The answer is unlikely to be A.",
    "A is not the answer.",
    "It is not A.",
    "I would not choose B.",
    "The answer should not be C.",
    "The answer couldn't be B.",
    "We know the answer isn't D.",
    "The answer is none of A, B or C.",
    "The least likely answer is A.",
    "The correct answer is not A, nor B.",
    "The one wrong answer is B.",
    "Option C can be excluded.",
    "The answer excludes A.",
    "Definitely not C!",
    "A: incorrect",
    "The answer is not option B",
    "A seems wrong.",
    "We discard A.",
    "A fails the test.",
    "Everything except A is possible.",
    "B and C can finish it in 12 days.",
    "Since A invested 300, B must pay.",
    "C lent D 300.",
    "Then A beats B by 36 m.",
    "Point C lies on AB.",
    "So B walks 7 km.",
    "Let B = 5",
    "Then B will be 12 years old",
    "In 5 years, A will be twice as old as B.",
    "A : B = 3 : 5",
    "A's age is 36",
    "Thus A and B are equal.",
    "The set A has 12 elements",
    "If A then B",
    "Class A has 36 students.",
    "He got an A in maths.",
    "Team C won.",
    "B, who is 12, left.",
    "So C must walk 5 km",
    "Thus A needs 12 days",
    "Hence B alone can do it in 12 days",
    "Vitamin B",
    "Plan B",
    "Therefore A will take 36 days.",
    "A buys it for 300.",
    "Answer the question: A man walks.",
]


@pytest.mark.parametrize("text", NO_OPTION)
def test_no_option_is_stated(text: str) -> None:
    assert grade("aqua_rat", text, "A", LETTERS).answer is None


OPTION_C = [
    ("The answer can not be A; C it is.", "C"),
    ("Not A, not B, not D: C.", "C"),
    ("A – wrong, B – wrong, C – right, D – wrong. Answer: C", "C"),
    ("Since it's not A, the answer must be C.", "C"),
    ("It is C (not A).", "C"),
    ("Therefore the correct option is C, as A, B, D and E are all false.", "C"),
    ("Only C is correct.", "C"),
    ("C is the only option left.", "C"),
    ("Answer is C) 12", "C"),
    ("ANSWER: C", "C"),
    ("answer - C", "C"),
    ("Correct option: (C)", "C"),
    ("The answer: [C]", "C"),
    ("C. 12 is the answer", "C"),
    ("So the answer is:\n\n**C) 12**", "C"),
    ("Thus the answer is choice C.", "C"),
    ("Option C", "C"),
    ("option (C) is right", "C"),
    ("I'd pick C", "C"),
    ("My final answer is C!", "C"),
    ("The correct letter is C", "C"),
    ("Hence (C) is correct.", "C"),
    ("C ✓", "C"),
    ("=> C", "C"),
    ("Ans: C", "C"),
    ("Ans. (C)", "C"),
    ("The right choice would be C.", "C"),
    ("[[C]]", "C"),
    ("**C**: 12", "C"),
    ("Final answer: $\\text{C}$", "C"),
    ("$\\boxed{C. 12}$", "C"),
    ("\\boxed{\\text{Option C}}", "C"),
    ("\\boxed{\\mathrm{C}}", "C"),
    ("The answer is \\textbf{C}.", "C"),
    ("The answer is **C**, because A and B are too large.", "C"),
    ("C because A is wrong", "C"),
    ("It must be either A or C. A fails, so C.", "C"),
    ("The answer is\nC", "C"),
    ("<answer>\nC\n</answer>", "C"),
    ('{"answer": "C", "confidence": 0.9}', "C"),
    ("Answer = C", "C"),
    ("The best answer would be (C) 12.", "C"),
    ("Let's go with C.", "C"),
    ("The answer is C.\n\nA) is wrong since it is too large.\nB) is wrong too.", "C"),
    ("正解は「C」です", "C"),
    ("选 C", "C"),
    ("本题答案为C选项", "C"),
    ("所以正确答案是C", "C"),
    ("Por lo tanto, la respuesta correcta es la C.", "C"),
    ("La opción correcta es C", "C"),
    ("Donc la réponse est C", "C"),
    ("إذن الجواب هو C", "C"),
    ("الإجابة الصحيحة: C", "C"),
    ("অতএব, সঠিক উত্তর C", "C"),
    ("Portanto, a resposta correta é C.", "C"),
    ("Portanto, alternativa C", "C"),
    ("Следовательно, правильный ответ — C.", "C"),
    ("Ответ — C", "C"),
    ("لہٰذا صحیح جواب C ہے", "C"),
    ("अतः सही उत्तर (C) है", "C"),
    ("Jadi jawabannya adalah C", "C"),
    ("Also ist die Antwort C.", "C"),
    ("したがって答えはC", "C"),
]


@pytest.mark.parametrize(("text", "answer"), OPTION_C)
def test_an_option_is_stated(text: str, answer: str) -> None:
    assert grade("aqua_rat", text, "A", LETTERS).answer == answer


SPELLED = [
    ("1.234.567,5", "1234567.5"),
    ("1 234 567,89", "1234567.89"),
    ("12’345.6", "12345.6"),
    ("1,23,456", "123456"),
    ("٢٥٠", "250"),
    ("২৫", "25"),
    ("௧௮", "18"),
    ("𝟙𝟚", "12"),
    ("-\\frac{1}{2}", "-1/2"),
    ("\\frac{-1}{-2}", "1/2"),
    ("$\\tfrac{-7}{3}$", "-7/3"),
    ("−\\frac{7}{3}", "-7/3"),
    ("5×10⁶", "5000000"),
    ("10⁶", "1000000"),
    ("2³", "8"),
    ("1.5×10⁻²", "0.015"),
    ("$1.2 \\cdot 10^{-3}$", "0.0012"),
    ("3/4", "3/4"),
    ("⅔", "2/3"),
    ("1⅔", "5/3"),
    ("5 1/3", "16/3"),
    ("12.50 €", "12.5"),
    ("€12,50", "12.5"),
    ("1 000 000", "1000000"),
    ("100 000", "100000"),
    ("7%", "7"),
    ("(18)", "18"),
    ("[18]", "18"),
    ("18!", "18"),
    ("“18”", "18"),
    ("18/1", "18"),
    ("+18", "18"),
    ("~18", "18"),
    ("≈18", "18"),
    ("about 18", "18"),
    ("x = 18", "18"),
    ("18 km/h", "18"),
    ("18°C", "18"),
    ("$ 18", "18"),
    ("18$", "18"),
    ("US$18", "18"),
    ("18 USD", "18"),
    ("Rs 18", "18"),
    ("£18", "18"),
    ("18 (eighteen)", "18"),
    ("18—as required", "18"),
    ("18...", "18"),
]


@pytest.mark.parametrize(("written", "value"), SPELLED)
def test_more_spellings_of_numbers(written: str, value: str) -> None:
    for form in ("#### {}", "The answer is {}.", "So she has {}", "\\boxed{{{}}}", "**{}**"):
        assert grade("gsm8k", form.format(written), value).correct, form


@pytest.mark.parametrize(
    ("text", "choices", "answer"),
    [("A) 300", LETTERS, None), ("Answer: C) 7", LETTERS, None), ("B) It is a metal.", WORDS, None), ("The answer is D) It absorbs heat.", WORDS, None), ("B) 300", LETTERS, "B"), ("C) twelve", LETTERS, "C"), ("B) It absorbs heat, since it is dark.", WORDS, "B")],
)  # fmt: skip
def test_a_letter_beside_another_options_wording_is_no_answer(
    text: str, choices: dict[str, str], answer: str | None
) -> None:
    assert grade("arc_challenge", text, "A", choices).answer == answer


@pytest.mark.parametrize("text", ["So it is 6 *", "Then 3 + 3 =", "we get 12 / 2 =", "$$\n3 + 3 =", "6 ×"])
def test_a_computation_that_is_cut_off_is_no_answer(text: str) -> None:
    for benchmark in ("gsm8k", "math500"):
        assert not grade(benchmark, f"There are 6.\n{text}", "6").compliant


def test_a_text_that_goes_on_with_another_question_is_read_up_to_there() -> None:
    for go_on in ("\n\nQ: How many?\nA: The answer is 7.", "\nQuestion: 3+4?\n#### 7", "\n\nProblem: x\nAnswer: 7"):
        assert grade("gsm8k", f"So 9*2 = 18. The answer is 18.{go_on}", "18").correct
    assert grade("gsm8k", "Question: how many eggs?\nAnswer: 18", "18").correct


@pytest.mark.parametrize("benchmark", ["gsm8k", "math500"])
@pytest.mark.parametrize(
    "text",
    [
        "The answer is not 18.",
        "So the final answer is not 18",
        "Answer: not 18",
        "The answer isn't 18.",
        "The answer is **not** 18.",
        "The answer cannot be 18.",
    ],
)
def test_a_number_that_is_denied_is_no_answer(benchmark: str, text: str) -> None:
    assert not grade(benchmark, text, "18").correct


@pytest.mark.parametrize(
    "text",
    [
        "The answer is 17 or 18.",
        "Answer: either 17 or 18",
        "The answer is between 17 and 18.",
        "The answer is 17, maybe 18",
    ],
)
def test_a_number_of_several_is_no_answer(text: str) -> None:
    assert not grade("gsm8k", text, "18").correct


def test_a_denial_that_is_followed_by_the_answer_is_read_on() -> None:
    assert grade("gsm8k", "The answer is not 18. It must be 20.", "20").correct
    assert grade("math500", "The answer is not 18. The answer is 20.", "20").correct
