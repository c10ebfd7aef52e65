"""Compares mathematical expressions with math-verify, as a process of its own; started by `math_equality`, not
imported.

Reads one JSON object a line from standard input, `{"gold": str, "answer": str, "seconds": float}`, and writes one a
line, `{"equal": bool}`. The first line it writes is `{"ready": true}`, or `{"error": str}` when math-verify cannot be
loaded.

A request that uses more processor time than `seconds` ends this process: the operating system delivers the signal even
inside one long integer power, where no Python-level time limit can act.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

_ADDRESS_SPACE_BYTES = 4 << 30


def _equal(math_verify: Any, gold: str, answer: str) -> bool:
    def parse(expression: str) -> Any:
        return math_verify.parse(f"\\boxed{{{expression}}}", parsing_timeout=None)

    try:
        return bool(math_verify.verify(parse(gold), parse(answer), timeout_seconds=None))
    except Exception:  # whatever a parser or a simplifier trips over: equality was not shown
        return False


def main() -> None:
    """Serve requests until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes our input when it ends
    replies = sys.stdout
    sys.stdout = sys.stderr
    try:
        import math_verify
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=replies, flush=True)
        return
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, resource.RLIM_INFINITY))
    print(json.dumps({"ready": True}), file=replies, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        equal = _equal(math_verify, request["gold"], request["answer"])
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"equal": equal}), file=replies, flush=True)


if __name__ == "__main__":
    main()
