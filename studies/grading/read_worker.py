"""Reads answers out of long texts, as a process of its own; started by `reading`, not imported.

Each line of standard input is `{"reader": str, "text": str, "choices": {...} or null, "seconds": float}`, each line of output
`{"answer": ...}`. A reading that uses more processor time than `seconds` ends this process, also in the middle of one regular
expression. The readers are loaded under a name of their own, so that nothing else of the package is.
"""

from __future__ import annotations

import importlib
import json
import signal
import sys
import types
from pathlib import Path


def main() -> None:
    """Serve requests until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which closes our input when it ends
    package = types.ModuleType("readers")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules["readers"] = package
    read = importlib.import_module("readers.readers").read
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        answer = read(request["reader"], request["text"], request["choices"])
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps({"answer": answer}), flush=True)


if __name__ == "__main__":
    main()
