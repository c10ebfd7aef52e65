"""Chat templates of many families, tried with marked texts: is every text kept, where does a system text go, who begins the text.

Guarantees that what the documentation says of a family's template was found by rendering. The templates are small ones written in the
shape of each family's: same roles, same markers, same way of taking content. Usage: python -m precollapse.perf.chat_templates docs/models.md
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from precollapse.hooks.prompts.rendering import Renderer

_ASK = "{% if add_generation_prompt %}"


def _turns(
    begin: str, end: str, prompt: str, head: str = "", roles: str = "m['role']", content: str = "m['content']"
) -> str:
    return f"{head}{{% for m in messages %}}{begin.replace('ROLE', '{{ ' + roles + ' }}')}{{{{ {content} }}}}{end}{{% endfor %}}{_ASK}{prompt}{{% endif %}}"


def _first_system(body: str, system: str) -> str:
    return (
        "{% if messages[0]['role'] == 'system' %}{% set s = messages[0]['content'] %}{% set rest = messages[1:] %}"
        f"{{% else %}}{{% set s = '' %}}{{% set rest = messages %}}{{% endif %}}{system}{body}"
    )


_CHATML = _turns("<|im_start|>ROLE\n", "<|im_end|>\n", "<|im_start|>assistant\n")
_NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
_INST = (
    "{% for m in rest %}{% if m['role'] == 'user' %}[INST] {% if loop.first and s %}SYSTEM{% endif %}{{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}"
)
_PARTS = (
    "{% for m in messages %}ROLE{% for c in m['content'] %}{% if c['type'] == 'text' %}{{ c['text'] }}{% else %}<image>{% endif %}{% endfor %}"
    "END{% endfor %}"
)
_THINK_LATER = "{% if m['role'] == 'assistant' and '</think>' in m['content'] %}{{ m['content'].split('</think>')[-1] }}{% else %}{{ m['content'] }}{% endif %}"
_HEADER = _turns(
    "<|start_header_id|>ROLE<|end_header_id|>\n\n",
    "<|eot_id|>",
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "{{ bos_token }}",
)

TEMPLATES: Mapping[str, str] = {
    "Llama 2": "{{ bos_token }}" + _first_system(_INST.replace("SYSTEM", "{{ '<<SYS>>\n' ~ s ~ '\n<</SYS>>\n\n' }}"), ""),
    "Llama 3": _HEADER.replace("{{ m['content'] }}", "{{ m['content'] | trim }}"),
    "Llama 3.1": _first_system(
        "{% for m in rest %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
        + _ASK + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ strftime_now('%d %b %Y') }}\n\n{{ s }}<|eot_id|>",
    ),
    "Mistral 7B": "{{ bos_token }}" + _first_system(_INST.replace("SYSTEM", "{{ s ~ '\n\n' }}"), ""),
    "Mixtral": "{{ bos_token }}" + _NO_SYSTEM + "{% set s = '' %}{% set rest = messages %}" + _INST.replace("SYSTEM", ""),
    "Mistral Small 3": _turns("[ROLE]", "[/END]", "", "{{ bos_token }}").replace("[ROLE]", "[{{ m['role'] | upper }}]"),
    "Gemma 1, 2": "{{ bos_token }}" + _NO_SYSTEM + _turns(
        "<start_of_turn>ROLE\n", "<end_of_turn>\n", "<start_of_turn>model\n", roles="'model' if m['role'] == 'assistant' else m['role']", content="m['content'] | trim"
    ),
    "Gemma 3": "{{ bos_token }}" + _first_system(
        "{% for m in rest %}<start_of_turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n{% if loop.first and s %}{{ s ~ '\n\n' }}{% endif %}"
        "{% if m['content'] is string %}{{ m['content'] | trim }}{% else %}{% for c in m['content'] %}{{ c['text'] | trim }}{% endfor %}{% endif %}<end_of_turn>\n{% endfor %}"
        + _ASK + "<start_of_turn>model\n{% endif %}", ""
    ),
    "Qwen 2": "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant<|im_end|>\n{% endif %}" + _CHATML,
    "Qwen 2.5": "{% if tools %}<tools>{{ tools | tojson }}</tools>{% endif %}" + _CHATML,
    "Qwen 3": _CHATML.replace("{{ m['content'] }}", _THINK_LATER).replace(
        "assistant\n{% endif %}", "assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
    ),
    "Phi-3": "{% for m in messages %}{% if m['role'] == 'user' %}<|user|>\n{{ m['content'] }}<|end|>\n<|assistant|>\n{% elif m['role'] == 'assistant' %}{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}",
    "Phi-4": _turns("<|im_start|>ROLE<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "ChatML": _CHATML,
    "Zephyr": _turns("<|ROLE|>\n", "{{ eos_token }}\n", "<|assistant|>\n").replace("<|ROLE|>", "<|{{ m['role'] }}|>"),
    "Vicuna": _first_system(
        "{% for m in rest %}{% if m['role'] == 'user' %}USER: {{ m['content'] }} {% else %}ASSISTANT: {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}" + _ASK + "ASSISTANT:{% endif %}",
        "{% if s %}{{ s ~ ' ' }}{% endif %}",
    ),
    "Falcon": _turns("ROLE: ", "\n\n", "Assistant:", roles="m['role'] | capitalize", content="m['content'] | trim"),
    "DeepSeek V2": "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}User: {{ m['content'] }}\n\n{% elif m['role'] == 'assistant' %}Assistant: {{ m['content'] }}{{ eos_token }}{% else %}{{ m['content'] }}\n\n{% endif %}{% endfor %}" + _ASK + "Assistant:{% endif %}",
    "DeepSeek R1": "{{ bos_token }}" + _first_system(
        "{% for m in rest %}{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}{% else %}<|Assistant|>{{ m['content'].split('</think>')[-1] }}{{ eos_token }}{% endif %}{% endfor %}" + _ASK + "<|Assistant|><think>\n{% endif %}",
        "{{ s }}",
    ),
    "Command R": _turns("<|START_OF_TURN_TOKEN|><|ROLE|>", "<|END_OF_TURN_TOKEN|>", "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "{{ bos_token }}", content="m['content'] | trim").replace("<|ROLE|>", "<|{{ m['role'] | upper }}_TOKEN|>"),
    "Granite 3": _turns("<|start_of_role|>ROLE<|end_of_role|>", "<|end_of_text|>\n", "<|start_of_role|>assistant<|end_of_role|>"),
    "OLMo 2": _turns("<|ROLE|>\n", "\n", "<|assistant|>\n", "{{ bos_token }}").replace("<|ROLE|>", "<|{{ m['role'] }}|>"),
    "Yi": _CHATML,
    "InternLM 2": "{{ bos_token }}" + _CHATML,
    "GLM 4": _turns("<|ROLE|>\n", "", "<|assistant|>\n", "[gMASK]<sop>").replace("<|ROLE|>", "<|{{ m['role'] }}|>"),
    "gpt-oss": _first_system(
        "{% for m in rest %}{% if m['role'] == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m['content'] }}<|end|>{% else %}<|start|>user<|message|>{{ m['content'] }}<|end|>{% endif %}{% endfor %}" + _ASK + "<|start|>assistant{% endif %}",
        "<|start|>system<|message|>Current date: {{ strftime_now('%Y-%m-%d') }}\nReasoning: {{ reasoning_effort or 'medium' }}<|end|>{% if s %}<|start|>developer<|message|># Instructions\n\n{{ s }}<|end|>{% endif %}",
    ),
    "SmolLM 2": "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful AI assistant named SmolLM<|im_end|>\n{% endif %}" + _CHATML,
    "SmolLM 3": _first_system(
        "{% for m in rest %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}" + _ASK + "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}{% endif %}",
        "<|im_start|>system\nToday: {{ strftime_now('%d %B %Y') }}\n\n{{ s }}<|im_end|>\n",
    ),
    "Nemotron": _turns("<extra_id_1>ROLE\n", "\n", "<extra_id_1>Assistant\n", roles="m['role'] | capitalize"),
    "ERNIE 4.5": "{{ bos_token }}" + _first_system(
        "{% for m in rest %}{% if m['role'] == 'user' %}User: {{ m['content'] }}\n{% else %}Assistant: {{ m['content'] }}{{ eos_token }}{% endif %}{% endfor %}" + _ASK + "Assistant: {% endif %}",
        "{% if s %}{{ s }}\n{% endif %}",
    ),
    "MiniMax": _PARTS.replace("ROLE", "<beginning_of_sentence>{{ m['role'] }}\n").replace("END", "<end_of_sentence>\n") + _ASK + "<beginning_of_sentence>ai\n{% endif %}",
    "Kimi K2": _turns("<|im_ROLE|>", "<|im_end|>", "<|im_assistant|>assistant<|im_middle|>").replace("<|im_ROLE|>", "<|im_{{ m['role'] }}|>{{ m['role'] }}<|im_middle|>"),
    "Hunyuan": "{{ bos_token }}" + _first_system(
        "{% for m in rest %}{% if m['role'] == 'user' %}<|User|>{{ m['content'] }}{% else %}<|Assistant|>{{ m['content'] }}<|eos|>{% endif %}{% endfor %}" + _ASK + "<|Assistant|>{% endif %}", "{{ s }}"
    ),
    "LLaVA": _PARTS.replace("ROLE", "{{ m['role'] | upper }}: ").replace("END", " ") + _ASK + "ASSISTANT:{% endif %}",
    "Idefics": _PARTS.replace("ROLE", "{{ m['role'] | capitalize }}: ").replace("END", "<end_of_utterance>\n") + _ASK + "Assistant:{% endif %}",
}  # fmt: skip
"""Small templates in the shape of each family's, by family."""

BEGIN = "<!-- made by perf/chat_templates.py -->"


def tokenizer(chat_template: str) -> Any:
    """A tokenizer of one token per byte that begins texts with its BOS, with a chat template."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>")])
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 256)])
    fast = PreTrainedTokenizerFast(tokenizer_object=made, bos_token="<s>", eos_token="</s>")
    fast.chat_template = chat_template
    return fast


def row(family: str) -> dict[str, Any]:
    """What trying a family's template found."""
    renderer = Renderer(tokenizer(TEMPLATES[family]))
    words = ("be brief and exact", "what is two and two", "it is four", "and three and three")
    roles = ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, words, strict=True)]
    rendered = renderer.render(messages)
    chat = renderer.describe()["chat"]
    return {
        "family": family,
        "content": chat["content"],
        "text kept": all(text in str(rendered.text) for text in words[1:]),
        "system kept": words[0] in str(rendered.text),
        "system": chat["system"],
        "BOS of a tokenizer with one": rendered.bos_count,
        "begun by": chat["bos"],
        "asks the date": renderer.knows_date,
        "continues": str(renderer.render(messages[:3]).text).endswith(words[2]),
    }


def table() -> str:
    """The table of all families, as Markdown."""
    rows = [row(family) for family in TEMPLATES]
    names = list(rows[0])
    shown = [[("yes" if v else "no") if isinstance(v, bool) else str(v) for v in r.values()] for r in rows]
    return "\n".join(["| " + " | ".join(r) + " |" for r in (names, ["---"] * len(names), *shown)])


def section() -> str:
    """The section of docs/models.md that holds the table."""
    return f"""{BEGIN}
## Chat templates

Small templates in the shape of each family's, tried with a conversation of a system text, two questions and an answer, and a tokenizer
that begins texts with a BOS. *content*: how a message is given. *system*: its own turn, or the beginning of the user's where the
template has no place for it. *begun by*: the template where it names a BOS, as `apply_chat_template(tokenize=True)` has it, else the
tokenizer. *continues*: a chat that ends with the assistant's words ends with them.

{table()}
"""


def main() -> None:
    """Write the section into a page (in place of the one that is there, at its end), or print it."""
    if len(sys.argv) < 2:
        print(section())
        return
    page = Path(sys.argv[1])
    head = page.read_text(encoding="utf-8").partition(BEGIN)[0].rstrip()
    page.write_text(f"{head}\n\n{section()}", encoding="utf-8")


if __name__ == "__main__":
    main()
