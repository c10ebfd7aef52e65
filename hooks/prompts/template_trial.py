"""Tries a chat template on small conversations, as a process of its own; started by `template` as a script.

Reads the template, its seconds and, where a conversation is to be tried itself, that one, as a list in JSON from standard input. The process is ended by the system when it uses more processor time than a rendering
may; it prints "memory" when the template needs more than there is for it, and ends quietly otherwise, also when the template refuses
a conversation: that is for the real rendering to say, which this one resembles (Jinja in its sandbox, with the helpers that
templates call) without loading the libraries of models.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

_BYTES = 1 << 30
_TOKENS = {name: f"<{name}>" for name in ("bos_token", "eos_token", "pad_token", "unk_token")}


class Generation(Extension):
    """The block in which templates mark what an assistant wrote."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        """The statements of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _refused(message: str) -> None:
    raise ValueError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def main() -> None:
    """Try the template."""
    template, seconds, conversation = json.load(sys.stdin)
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
        resource.setrlimit(resource.RLIMIT_AS, (_BYTES, resource.RLIM_INFINITY))
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals |= {"raise_exception": _refused, "strftime_now": lambda form: datetime.now().strftime(form)}
    turns = [{"role": role, "content": "a"} for role in ("system", "user", "assistant", "user")]
    for messages in [conversation] if conversation else (turns[1:2], turns[:2], turns[1:]):
        try:
            environment.from_string(template).render(
                messages=messages, tools=None, documents=None, add_generation_prompt=True, **_TOKENS
            )
        except MemoryError:
            print("memory", flush=True)
            return
        except Exception:  # whatever it says, it ended
            pass


if __name__ == "__main__":
    main()
