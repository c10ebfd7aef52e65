"""Finds where a text names an option of an item, and whether it gives it as the answer, rules it out, or means something else.

Guarantees: only the item's own labels count (an item keyed `1`-`4` is read by digits); the article in `A plant needs light`, the
quantity in `2 hours`, the person in `B takes 12 days`, the point in `A(1, 2)`, the letter in `E = mc^2` or `10:00 A.M.` are not options;
an option's own wording names no other option, also where it is another option's letter (`A) C`); what is ruled out, alone or in a row
(`A, B and D are wrong`), is not an answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from .spelling.answer_text import plain

_LATEX_TEXT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|mathrm|mathbf|mathsf|mbox|boldsymbol|bm|underline)\s*\{([^{}]*)\}"
)
_LATEX_SPACE = re.compile(r"\\[ ,;:!]|\\q?quad(?![a-z])|(?<=[)}])~|\\(?:left|right|big|Big)(?=[()\[\]])")
_SHORT_MATH = re.compile(r"\$([^$\s]{1,12})\$|\\\(([^\n]{1,12}?)\\\)")
_EMPHASIS = re.compile(r"\*+|`+|(?<![A-Za-z0-9])__|__(?![A-Za-z0-9])")


def _any_word(words: str) -> str:
    """A pattern for any of the given words; an underscore stands for a space."""
    return rf"\b(?:{'|'.join(words.split()).replace('_', '[ ]')})\b"


_NEW_SENTENCE = r"""[.!?]["')\]]*[ ]+(?=[A-Z][a-z']|[A-Z][ ]+[a-z]|No[,. ])"""
_REASON = r"[,;]?[ ]*" + _any_word("because since due_to whereas while which as_it as_they porque weil karena pois")
_CLAUSE_END = re.compile(f"{_NEW_SENTENCE}|{_REASON}|因为|因為|क्योंकि|لأن|কারণ|потому|کیونکہ|なぜなら")

_GOES_ON = (
    "and or nor not but for because since due as while whereas which that then if rather instead over only again also too "
    "here best to vs where with given though although obviously clearly definitely indeed overall it_is therefore so thus "
    "porque ya que parce puisque weil denn pois karena y e et und ou oder dan atau fits makes matches"
)
_AFTER_OPTION = re.compile(rf"[ ]+{_any_word(_GOES_ON)}", re.IGNORECASE)
"""`A because`, `A and B`: words after which a bare letter still stands for an option."""
_BE = (
    "is isn't was wasn't are aren't were will would must can cannot can't could couldn't should shouldn't seems seem looks appears "
    "remains has have had does doesn't do don't did didn't won't wouldn't might may es est é ist adalah são sont sind son no_es não_é n'est"
)
_JUDGED = re.compile(
    rf"""[ ]+{_any_word(_BE)}(?:[ ]+[\w'-]+){{0,5}}?[ ]+["']?(?:{
        _any_word(
            "correct right best true answer answers choice option likely closest accurate appropriate valid one mine it what only most solution "
            "possible remaining left incorrect wrong false eliminated excluded out impossible unlikely invalid irrelevant not rejected "
            "correcta correcto correcte correta correto richtig benar incorrecta incorrecto incorrecte errada falsch salah"
        )
    })|[ ]+{_any_word("isn't wasn't aren't cannot can't couldn't doesn't don't won't wouldn't fails contradicts")}""",
    re.IGNORECASE,
)
"""`A is correct`, `A can be ruled out`: what is said of an option, and not of a person."""
_DOES = _any_word(
    "takes took can could will would has had have does did do gets got works worked finishes finished earns starts runs is was are were travels "
    "completes invests pays sells buys walks drives fills empties lends borrows owns received alone's needs gives spends leaves invested joined left"
)

_ANNOUNCES = _any_word("option options choice answer answers letter choose chose chosen select selected pick picked")
_COMMITS = re.compile(
    r"""(?:^|[:=>→⇒,;.!?\n({\["'-]|(?:是|为|為|选|選|选择|选项|項|은|は|が|选项为|है|ہے)|"""
    + _any_word(
        "option choice answer letter is be was it's that's choose chose select pick picked with for think say believe leaves leaving remains "
        "guess probably definitely likely clearly actually thus so hence therefore only just but either or and both "
        "es est é ist adalah будет это هو هي হল हैं opción opção alternativa réponse respuesta resposta ответ вариант"
    )
    + r")\s*[(\[\"'$]*$",
    re.IGNORECASE,
)
_STRONG = re.compile(rf"(?:{_ANNOUNCES}|:|=|→|\bis|\bbe)\s*[(\[\"'$]*$", re.IGNORECASE)
_BETWEEN_REFUSAL = r"(?:[ ]+(?:be|been|is|the|option|options|choice|choices|answer|answers|letter|likely|definitely|possibly|just|only|simply|either|both|to|it|choose|pick|select|going|go|with|say))*"
_REFUSED_BEFORE = re.compile(
    r"(?:"
    + _any_word(
        "not neither nor except without eliminate eliminates eliminated eliminating reject rejects rejected exclude excludes excluded excluding "
        "rule_out rules_out ruled_out ruling_out rather_than instead_of cannot never unlike other_than anything_but discard discards discarded "
        "dismiss dismissed cross_out crossed_out no_es nicht kein keine bukan não_é n'est_pas unlikely impossible doubtful"
    )
    + r"|n't|(?:incorrect|wrong|false|worst|unlikely|impossible|bad|invalid)[ ]+(?:options?|choices?|answers?|letters?|ones?|alternatives?)[ ]+(?:is|are|was|would[ ]be|would|include|includes)|"
    r"(?:incorrect|wrong|false)[ ]+(?:options?|choices?|answers?|ones?)[ ]*:|"
    r"least[ ]likely(?:[ ]\w+)?[ ]is|(?:不是|并非|並非|不选|不選|不为|排除|नहीं|не|ليس|ليست|ليس هو))"
    + _BETWEEN_REFUSAL
    + r"""[ ]*[(\["']?$""",
    re.IGNORECASE,
)
_REFUSED_AFTER = re.compile(
    r"""[)\]"']?\s*(?:[-:–—(][ ]*)?(?:
      (?:(?:is|was|are|were|seems?|looks?|appears?|has[ ]been|have[ ]been|would[ ]be|can[ ]be|could[ ]be|must[ ]be|being|gets?|es|est|é|está|ist|adalah)(?:[ ]+(?:also|clearly|definitely|obviously|thus|therefore|simply|just|both|all|then|now|immediately|probably))?
         (?:n't|[ ]+(?:not|wrong|incorrect|false|eliminated|excluded|rejected|ruled[ ]out|out|impossible|unlikely|invalid|irrelevant|discarded|dismissed|incorrecta|incorrecto|incorrecte|errada|incorreta|falsch|salah|falsa)))
      | (?:cannot|can't|can[ ]not|couldn't|could[ ]not|must[ ]not|mustn't|won't|will[ ]not|would[ ]not|wouldn't|should[ ]not|shouldn't)[ ]+be
      | (?:doesn't|does[ ]not|don't|do[ ]not|didn't|did[ ]not|fails|contradicts|makes[ ]no[ ]sense|no[ ]es|n'est[ ]pas|não[ ]é|nicht|bukan)
      | (?:incorrect|wrong|false|no|not[ ]correct|eliminated)(?![\w])
      | (?:不对|不對|不正确|不正確|错误|錯誤|错|नहीं|गलत|نہیں|غلط|নয়|নয়|ভুল|неверн|неправильн|خاطئ|ではない|ではありません|不是|✗|✘|❌)
    )""",
    re.IGNORECASE | re.VERBOSE,
)
_BETWEEN_MENTIONS = re.compile(
    r"""[\s)\]"'(\[,&/]*(?:\b(?:and|or|nor|und|et|y|ou|e)\b)?[\s("'\[]*(?:options?|choices?)?[\s("'\[]*""",
    re.IGNORECASE,
)
_OPENED = re.compile(r"""(?<!\w)[(\[{"']\s*$""")
_CALLED = re.compile(r"(?<!answer)(?<!option)(?<!choice)(?<=\w)[(\[](?:[^()\[\]\n]{0,40}[|,;][ ]*)?\s*$", re.IGNORECASE)
_FORMULA_AFTER = re.compile(
    r"\s*:\s*[A-Z]\b\s*[=:]|,\s*(?:who|whose)\b|\s*(?:[=^_+*<>≤≥×÷∪∩]|/(?![A-Za-z]\b)|\\(?:cap|cup|times|cdot|le|ge))|\(\s*-?[\d.]+\s*,|[²³₀-₉]"
)
_FORMULA_BEFORE = re.compile(r"(?:\\[A-Za-z]+\s*\{|[+*^_<>≤≥×÷∪∩∠△]|\\[A-Za-z]+|\d[ ]*=)[ ]*$|(?<=\d)-$")
_INITIALISM = re.compile(r"\.[A-Za-z](?:\.|\b)")
_LEADS = re.compile(
    r"[\W_]*(?:(?:the|an?|option|choice|letter|answer|is|it|la|le|el|die|der|das|alternativa|opción|opção|letra|thus|therefore|then|clearly|donc|also|daher|pues|entonces|portanto|logo|jadi|maka|значит|поэтому|réponse|буква|вариант|选项|就是)[\W_]+)*",
    re.IGNORECASE,
)
_SAID = re.compile(r"\s*[).:\]\-–—]+[ ]*(?P<words>[^\n]*?)(?=[.!?;]?[\"')\]]*(?:\s+[A-Z]|\n|\s*$))")
_CONTEXT = 90  # characters
_SHORT_LINE = 5  # words
_ONLY_AROUND = re.compile(
    r"\W*(?:(?:option|choice|answer|letter|选项|答案|opción|opção|réponse|respuesta|resposta|ответ|उत्तर|विकल्प|jawaban)\W+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Mention:
    """Where a text names an option.

    Attributes
    ----------
    label : str
    start, end : int
        Of the label, with the option's wording where it follows.
    committed : bool
        Whether the words around it present it as an answer; a bare letter in the middle of prose does not.
    refused : bool
        Whether the words around it rule it out: `not A`, `A is wrong`.
    bracketed : bool
        Whether a bracket follows it: `A)`, `(A)`.
    belied : bool
        Whether another option's wording follows it: `A) 10` where 10 is option B.
    """

    label: str
    start: int
    end: int
    committed: bool
    refused: bool
    bracketed: bool
    belied: bool = False


def plain_options(text: str) -> str:
    """Drop emphasis and the LaTeX around short texts; make full-width and typographic characters plain."""
    text = _LATEX_SPACE.sub(" ", _LATEX_TEXT.sub(r"\1", _LATEX_TEXT.sub(r"\1", plain(text))))
    return _EMPHASIS.sub("", _SHORT_MATH.sub(lambda math: math[1] or math[2], text))


def _words(text: str) -> str:
    """A wording without case, spacing and a full stop."""
    return " ".join(text.split()).casefold().strip(". \"'()")


@lru_cache(maxsize=256)
def labels_of(choices: tuple[tuple[str, str], ...]) -> Labels:
    """The labels of the item with these choices."""
    return Labels(dict(choices))


class Labels:
    """The labels of one item, with the patterns that find them.

    Parameters
    ----------
    choices : mapping of str to str
        Label to option text; texts may be empty when unknown.
    """

    def __init__(self, choices: Mapping[str, str]) -> None:
        self._own = {label.upper(): label for label in choices}
        self._numeric = all(label.isdigit() for label in choices)
        self._texts: dict[str, re.Pattern[str]] = {}
        inside: list[str] = []
        alternatives = "|".join(sorted(map(re.escape, self._own), key=len, reverse=True))
        before, after = (
            (r"(?<![\w$€£¥₹.,/+\-^°])", r"(?![\w%°/]|[.,:]\d|[ ][%°])")
            if self._numeric
            else (r"(?<![\w°^])(?<!\w-)(?<!\w')(?<![A-Za-z]\.)", r"(?!\w|-\w|'\w|°|\+)")
        )
        self._token = re.compile(f"{before}(?:{alternatives}){after}", re.IGNORECASE)
        for label, text in choices.items():
            words = r"\s+".join(map(re.escape, plain_options(text).split()))
            if not words:
                continue
            is_label = plain_options(text).strip().upper() in self._own
            separator = r"\s*[).:\]\-(=–—]+[\s(\"']*" if is_label else r"[\s).:\]\-(=–—,\"']*"
            self._texts[label] = re.compile(separator + words + r"(?![^\W_])", re.IGNORECASE)
            if not is_label and self._token.search(plain_options(text)):
                inside.append(words)
        inside.sort(key=len, reverse=True)
        self._clauses = {label: _words(plain_options(text)) for label, text in choices.items()}
        self._wordings = re.compile(rf"(?<![^\W_])(?:{'|'.join(inside)})(?![^\W_])", re.IGNORECASE) if inside else None

    def _belied(self, label: str, text: str, start: int, end: int) -> bool:
        """Whether what follows a label is the wording of another option and not its own: `A) 10` where 10 is option B."""
        found = _SAID.match(text, start, end)
        words = _words(found["words"]) if found else ""
        return bool(words) and words != self._clauses[label] and words in self._clauses.values()

    def clause_end(self, text: str, start: int, end: int) -> int:
        """Where in `text[start:end]` an explanation begins: a new sentence, `because`, ...; never within a list of options."""
        cut = _CLAUSE_END.search(text, start, end)
        if not cut or len({mention.label for mention in self.mentions(text, start, end) if mention.bracketed}) > 1:
            return end
        return cut.start() + 1 if text[cut.start()] in ".!?" else cut.start()

    def alone(self, span: str) -> str | None:
        """The label that is all there is in `span`."""
        around = _ONLY_AROUND.match(span)
        token = self._token.match(span, around.end()) if around else None
        return self._own[token[0].upper()] if token and not re.search(r"\w", span[token.end() :]) else None

    def stated_by(self, clause: str) -> str | None:
        """Return the option that `clause` states alone: a bare label, one marked at the start, or one in few words."""
        if alone := self.alone(clause):
            return alone
        found = self.mentions(clause)
        if len({mention.label for mention in found}) != 1 or found[0].refused or found[0].belied:
            return None
        first = found[0]
        end = first.start + len(first.label)
        at_start = not re.search(r"\w", clause[: first.start])
        marked = re.match(r"\s*[)\].:]", clause[end:]) or first.end > end
        short = first.committed and len(clause.split()) <= _SHORT_LINE  # "So I choose B."
        return first.label if (at_start and marked) or short else None

    def mentions(self, text: str, start: int = 0, end: int | None = None, announced: bool = False) -> list[Mention]:
        """Return the options that `text[start:end]` names, those it rules out among them; what stands before `start` on the same
        line tells how, and one that it begins with is committed to where words before it announce an answer."""
        end = len(text) if end is None else end
        if alone := self.alone(text[start:end]):
            before = text[max(0, start - _CONTEXT) : start].rpartition("\n")[2]
            return [Mention(alone, start, end, True, bool(_REFUSED_BEFORE.search(before)), bracketed=False)]
        found = list(self._scan(text, start, end))
        refused = [mention is not None and mention.refused for mention, _, _ in found]
        things = [mention is None for mention, _, _ in found]
        for i in range(1, len(found)):  # in a row, what is said of the first or of the last is said of all
            if _BETWEEN_MENTIONS.fullmatch(text[found[i - 1][2] : found[i][1]]):
                refused[i] |= refused[i - 1] and not things[i - 1]
        for i in range(len(found) - 2, -1, -1):
            if _BETWEEN_MENTIONS.fullmatch(text[found[i][2] : found[i + 1][1]]):
                refused[i] |= refused[i + 1]
                mention = found[i][0]
                things[i] |= things[i + 1] and not (mention is not None and mention.bracketed)
        return [
            replace(
                m,
                committed=m.committed or (announced and not m.belied and bool(_LEADS.fullmatch(text, start, m.start))),
                refused=refused[i],
            )
            for i, (m, _, _) in enumerate(found)
            if m is not None and not things[i]
        ]

    def _scan(self, text: str, start: int, end: int) -> Iterator[tuple[Mention | None, int, int]]:
        """Every label, with where it begins and ends: as a mention, or None where the letter means a person, a point, a unit."""
        covered = [] if self._wordings is None else [m.span() for m in self._wordings.finditer(text, start, end)]
        skip_to = start
        for token in self._token.finditer(text, start, end):
            if token.start() < skip_to:
                continue
            before = text[max(0, token.start() - _CONTEXT) : token.start()].rpartition("\n")[2]
            after = text[token.end() : min(end, token.end() + _CONTEXT)]
            label = self._own[token[0].upper()]
            own_text = self._own_text(label, text, token.end(), end)
            if not own_text and any(
                a <= token.start() and token.end() <= b and (a, b) != token.span() for a, b in covered
            ):
                continue
            if own_text:
                skip_to = own_text.end()
            mention, first, last = self._mention(
                label, token, before, after, own_text, text[skip_to : skip_to + _CONTEXT]
            )
            if mention and not own_text and self._belied(label, text, token.end(), end):
                mention = replace(mention, committed=False, belied=True)
            yield mention, first, last

    def _mention(
        self, label: str, token: re.Match[str], before: str, after: str, own_text: re.Match[str] | None, after_text: str
    ) -> tuple[Mention | None, int, int]:
        called = bool(_CALLED.search(before))  # f(A)
        bracketed = bool(re.match(r"\s*[)\]]", after)) and not called
        quoted = bool(_OPENED.search(before)) and after.startswith(('"', "'", "}"))
        stop = own_text.end() if own_text else token.end()
        nothing = None, token.start(), token.end()
        if not own_text:
            if re.match(r"[)\]\"'*]*\s*\?", after) or _INITIALISM.match(after):
                return nothing
            if not bracketed and not quoted and self._means_something_else(label, token[0], before, after, called):
                return nothing
        bare_text = own_text is not None and not re.match(r"\s*[^\w\s]", after)  # "B 300"
        committed = bool(_COMMITS.search(before))
        if (own_text and not bracketed and _FORMULA_BEFORE.search(before)) or (
            bare_text and not committed and re.search(r"\w", before)
        ):
            return nothing
        refused_after = _REFUSED_AFTER.match(after_text if own_text else after)
        return (
            Mention(
                label,
                token.start(),
                stop,
                committed=bracketed or quoted or bool(own_text) or committed,
                refused=bool(_REFUSED_BEFORE.search(before) or refused_after),
                bracketed=bracketed,
            ),
            token.start(),
            stop,
        )

    def _own_text(self, label: str, text: str, position: int, end: int) -> re.Match[str] | None:
        """Match the option's own wording right after its label, as in `B) vitamin C` and `B vitamin C`.

        Where the label could be an article or a quantity (`A plant`, `2 hours`) and nothing marks it as a label, its
        wording must fill the line, and after a digit does not count.
        """
        match = self._texts[label].match(text, position, end) if label in self._texts else None
        ambiguous = label in ("A", "I") or self._numeric
        if not match or not ambiguous or re.match(r"\s*[)\].:]", text[position:end]):
            return match
        return None if self._numeric or re.match(r"[^\n]*\w", text[match.end() : end]) else match

    def _means_something_else(self, label: str, written: str, before: str, after: str, called: bool) -> bool:
        small_letter_in_prose = written != label and written.islower() and not re.search(r"[:=]\s*$", before)
        unit = re.search(r"\d[ ]$", before) and not re.match(r"[.:][ ]*\w", after)  # 20 C
        if called or small_letter_in_prose or unit:
            return True
        if _FORMULA_AFTER.match(after) or _FORMULA_BEFORE.search(before):
            return True
        if self._numeric and re.match(r"\s+\d", after):
            return True
        if not re.match(r"\s+[A-Za-z]", after):
            return written in "AIai" and bool(re.match(r"\s+\d", after))
        if _JUDGED.match(after):
            return False
        if self._numeric or written in "AIai":
            return not _AFTER_OPTION.match(after)
        if _AFTER_OPTION.match(after):
            return False
        if _STRONG.search(before):
            return bool(re.match(rf"\s+{_DOES}", after))
        return True  # a person, a point: B takes 12 days
