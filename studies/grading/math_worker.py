"""Finds the keys of mathematical expressions, as a process of its own; started by `math_equality`, not imported.

Reads one JSON object a line from standard input, `{"expression": str, "gold": str or null, "seconds": float}`, and writes one a line,
`{"key": str}`. The first line it writes is `{"ready": true}`, or `{"error": str}` when the parser of LaTeX cannot be loaded. The modules of
grading are loaded under a name of their own, so that nothing else of the package is.

A request that uses more processor time than `seconds` ends this process: the operating system delivers the signal even
inside one long integer power, where no Python-level time limit can act.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import types
from pathlib import Path

_ADDRESS_SPACE_BYTES = 4 << 30


def main() -> None:
    """Serve requests until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes our input when it ends
    replies = sys.stdout
    sys.stdout = sys.stderr
    package = types.ModuleType("answers")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules["answers"] = package
    try:
        key = importlib.import_module("answers.equality.keys").key
        key("x+1")  # what the parser loads when it is first used
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
        try:
            found = key(request["expression"], request["gold"])
        except Exception:  # whatever a parser or a simplifier trips over: it is its own spelling
            found = "s:" + "".join(request["expression"].split())
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"key": found}), file=replies, flush=True)


if __name__ == "__main__":
    main()
