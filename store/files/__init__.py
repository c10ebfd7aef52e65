"""Where the files of a run lie: the protocol, its two kinds (a local folder, a bucket), their errors, and sealed records.

`protocol` says what the store asks of a place, `place` finds the kind of an address; nothing else in the store touches a file by itself.
"""

from .errors import explained, readable, refused, refused_reading, unreadable
from .local import LocalFiles
from .place import local_path, open_files
from .protocol import Files, Handle, attempt

__all__ = [
    "Files",
    "Handle",
    "LocalFiles",
    "attempt",
    "explained",
    "local_path",
    "open_files",
    "readable",
    "refused",
    "refused_reading",
    "unreadable",
]
