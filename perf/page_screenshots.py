"""Screenshots of a report's page for the documents: `python perf/page_screenshots.py demo/report/report.html docs/figures`.

Guarantees that the pictures in docs are of a page that the package wrote, light and dark. Needs Chromium (`CHROMIUM` names another binary).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCHEMES = {"light": "1", "dark": "0"}


def main(page: str, folder: str) -> None:
    """Write page_light.png and page_dark.png, 1400 pixels wide."""
    for name, scheme in SCHEMES.items():
        flags = [f"--blink-settings=preferredColorScheme={scheme}", "--window-size=1400,1000", "--hide-scrollbars"]
        target = Path(folder).resolve() / f"page_{name}.png"
        program = [os.environ.get("CHROMIUM", "chromium"), "--headless", "--no-sandbox", "--disable-gpu", *flags]
        subprocess.run(
            [*program, f"--screenshot={target}", Path(page).resolve().as_uri()], check=True, capture_output=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
