"""Words that announce a final answer, in the languages with most speakers, and words that take an answer back.

Guarantees that readers of numbers, expressions and options know the same words. A cue announces an answer when it is followed by a
colon, a form of `to be` or a sign such as `=`; `answer choices:` announces a list and is none, and `the incorrect answer is` announces
what is not the answer.
"""

from __future__ import annotations

import re

_ENGLISH = r"""
    \b(?<!incorrect[ ])(?<!wrong[ ])(?<!false[ ])
      (?: (?:answers?|ans)\b (?![ ](?:choices?|options?|keys?|sheets?)\b)
        | (?:correct|best|right|final|my|closest|chosen|proper|appropriate)[ ](?:option|choice|letter|response|result|statement|alternative|selection)s?\b
        | (?:option|choice)(?=[ ]*:)
        | conclusion(?=[ ]*:) )
    (?: [^\n.!?:=]{0,60}? (?: \b(?:is|are|was|be|equals|becomes)\b | : | = | → | -> | => | ⇒ | ➜ ) [ ]*:?
      | [ ]* (?: \. (?=[ ]*[(\[]?[A-Z0-9]\b) | [-–—](?=[ ]) ) )
"""
_OTHER_LANGUAGES = r"""
      (?: (?:最终|最後|最后|正确|正確|标准|参考)?(?:答案|答)(?!案)(?:选项)? | (?:正确|正確|最佳|合适)(?:的)?(?:选项|選項|选择|選擇|答案) )
        [ ]* (?: 应该 | 應該 | 应 | 應 )? [ ]* (?: 是 | 为 | 為 | 选 | 選 | 即 | [:=] )+
    | (?: 故 | 应 | 應 | 所以 | 因此 | 本题 | 我 )[ ]*(?:选择|選擇|选|選)[ ]*[:]?
    | (?: 答え | 正解 | 解答 | 回答 | 正しい選択肢 | 最終回答 | 最終的な答え )[ ]* (?: は | が | : | ＝ | = )
    | (?: सही | अंतिम | अत: | अतः )?[ ]*(?: उत्तर | जवाब | विकल्प )[ ]* (?: (?:यह[ ]*)?(?: है | हैं | होगा ) | : | = | - (?=[ ]) )
    | (?: सही | अंतिम )[ ]+(?: उत्तर | जवाब | विकल्प ) (?=[ ])
    | \b(?: respuesta | opción[ ]correcta | alternativa[ ]correcta | solución(?=[ ]+es) )\b [^\n.!?:=]{0,40}? (?: \b(?:es|será|sería)\b | : | = )
    | (?: \br[ée]ponse\b | \b(?:bonne|meilleure)[ ](?:option|réponse)\b | \boption[ ]correcte\b | \bsolution\b(?=[ ]+est) )
        [^\n.!?:=]{0,40}? (?: \best\b | : | = )
    | \b(?: resposta | alternativa[ ]correta | opção[ ]correta | alternativa[ ]certa | solução(?=[ ]+é) )\b [^\n.!?:=]{0,40}? (?: é\b | \bserá\b | : | = )
    | (?: ال)?(?: إجابة | اجابة | أجابة | جواب ) (?:[ ](?:ال)?(?: صحيحة | صحيح | نهائية | نهائي ))? [ ]* (?: هي | هو | : | = )
    | الخيار[ ]الصحيح [ ]* (?: هو | : | = )
    | (?: সঠিক | চূড়ান্ত | চূড়ান্ত | অতএব,? )?[ ]*(?: উত্তর | উত্তরটি | বিকল্প )[ ]* (?: হল | হলো | হচ্ছে | হবে | : | = | - (?=[ ]) )
    | (?: সঠিক | চূড়ান্ত )[ ]+(?: উত্তর | বিকল্প ) (?=[ ])
    | (?: \bправильн\w+ | \bверн\w+ | \bокончательн\w+ | \bитогов\w+ )[ ]+(?: ответ | вариант )\w*\b [^\n.!?:=—–-]{0,30}? (?: : | = | — | – | - | (?=[ ]) )
    | \bответ\b [^\n.!?:=—–-]{0,30}? (?: : | = | — | – | - | \bравен\b | \bбудет\b )
    | (?: صحیح | درست | حتمی )?[ ]*(?: جواب | انتخاب )[ ]* (?: ہے | یہ[ ]ہے | : | = )
    | (?: صحیح | درست | حتمی )[ ]+(?: جواب | آپشن | انتخاب ) (?=[ ])
    | \b(?: jawaban(?:nya)? | pilihan[ ]yang[ ](?:benar|tepat) | kunci[ ]jawaban )\b [^\n.!?:=]{0,40}? (?: \badalah\b | \bialah\b | : | = )
    | \bist[ ]die[ ](?:richtige[ ])?antwort\b (?=[ ][(]?[A-Z0-9])
    | (?: \bantwort\b | \blösung\b(?=[ ]+(?:ist|lautet)) | \brichtige[ ](?:option|antwort)\b | \bergebnis\b ) [^\n.!?:=]{0,40}? (?: \bist\b | \blautet\b | \bbeträgt\b | : | = )
    | \b(?: risposta | opzione[ ]corretta | soluzione(?=[ ]+è) )\b [^\n.!?:=]{0,40}? (?: è\b | : | = )
    | (?: \bcevap\b | \byanıt\b | \bdoğru[ ]seçenek\b | \bđáp[ ]án\b | \bjawapan\b | \bodpowiedź\b | 정답 | 답 ) [^\n.!?:=]{0,20}? (?: : | = | \blà\b | 은 | 는 | \bto\b )
"""
CUE = re.compile(rf"<answer>|\\answer\b|{_ENGLISH}|{_OTHER_LANGUAGES}", re.VERBOSE | re.IGNORECASE)
"""A cue, to the end of what announces the answer."""

CUE_ALONE = re.compile(
    r"[\W_]*(?:so|thus|hence|therefore|the|my|our|your|la|le|a|die|der|das)?[\s,]*"
    r"(?:(?:correct|short|numerical|full)\s+)?(?:(?:final\s+)?(?:answer|ans)|final\s+(?:result|solution|response)"
    r"|答案|最终答案|答え|正解|उत्तर|जवाब|respuesta(?:\s+final)?|réponse(?:\s+finale)?|resposta(?:\s+final)?|الإجابة|الجواب|উত্তর|ответ|جواب|jawaban|antwort)"
    r"(?:\s+(?:is|est|es|ist|é|adalah|final|finale))?[\W_]*",
    re.IGNORECASE,
)
"""A line of nothing but the name of the answer: what it announces stands in the next line."""

NEGATION_WORDS = (
    "not never neither nor isn't wasn't aren't cannot can't couldn't won't wouldn't shouldn't mustn't doesn't don't "
    "no nicht kein keine bukan tidak non né ne не нет ليس ليست لا नहीं نہیں নয় নয়"
)

TAKEN_BACK = re.compile(
    r"\b(?:wait\b|hold on\b|scratch that|correction\b|on second thoughts?|let me (?:re|double|try again|correct|start over)"
    r"|i (?:made|see) (?:a|an|my) (?:mistake|error)|my mistake|sorry\b|oops\b|apologies\b|i was wrong)"
    r"|(?:^|(?<=[.!?]\s)|\n)\s*(?:no\b[,.!—-]|hmm\b|actually\b|but no\b)"
    r"|等等|不对|不對|espera\b|attends\b|espere\b|подожди|стоп\b",
    re.IGNORECASE,
)
"""Where a text turns against what it has said."""

FAILED = re.compile(
    r"\b(?:(?:that|this|it|which)(?:'s| is| was| seems| looks)? (?:fails?|failed|wrong|incorrect|not (?:right|correct|quite|true|it)|impossible|a mistake)"
    r"|(?:that|this|it) (?:does not|doesn't|did not|didn't|cannot|can't) (?:work|fit|hold|match|be)|not quite|not right|that isn't right|i was wrong"
    r"|i (?:made|see) (?:a|an|my) (?:mistake|error))",
    re.IGNORECASE,
)
"""Where a text says that what it has said is wrong."""

INTERMEDIATE = re.compile(
    r"\b(?:first|second|third|1st|2nd|previous|intermediate|partial|next|other|wrong|incorrect|sample|example|part|step(?![- ]by))\b",
    re.IGNORECASE,
)
"""Within a cue: an answer to something else than the question."""
