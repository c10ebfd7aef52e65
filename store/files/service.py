"""What an S3-compatible service answers when something is wrong, in the words of the package.

Guarantees one sentence for each: a wrong request (no credentials, plain HTTP, no such bucket, another region) is told from a service that
is down, which fails the job only after the time over which requests are tried again.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ...errors import RequestError, StoreError

_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_METADATA = re.compile(r"/latest/(api/token|meta-data)|instance metadata", re.IGNORECASE)
_REGION = re.compile(
    r"redirect without LOCATION|PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"
)
_KEYS = re.compile(r"SignatureDoesNotMatch|InvalidAccessKeyId|ExpiredToken|InvalidToken|TokenRefreshRequired")
_SILENT = re.compile(r"timed out|operation timed out|error sending request|TimedOut|connection (closed|reset)")
_DOWN = re.compile(r"after \d+ retries|error sending request|error decoding|status code: 5\d\d|timed out")


def check_settings(path: str, settings: Mapping[str, str] = os.environ) -> None:
    """Refuse an endpoint that no request could be sent to.

    Raises
    ------
    RequestError
        It is no URL, or plain HTTP that was not allowed.
    """
    name = next((name for name in _ENDPOINTS if settings.get(name)), None)
    if name is None:
        return
    if not re.fullmatch(r"https?://[^\s/?#]+(/\S*)?", settings[name]):
        raise RequestError(
            f"{path} cannot be reached: {name} is {settings[name]!r}, which is no address of a service: give "
            "https://host or https://host:port."
        )
    if settings[name].startswith("http://") and not _allows_http(settings):
        raise RequestError(
            f"{path} cannot be reached: {name} is {settings[name]}, and plain HTTP is not allowed: give an https:// "
            "address, or set AWS_ALLOW_HTTP=true for a service without TLS."
        )


def _allows_http(settings: Mapping[str, str]) -> bool:
    return settings.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1")


def client_options(seconds: float, settings: Mapping[str, str] = os.environ) -> Any:
    """Options of the client library; given any, it reads none of its own from the environment."""
    return {"timeout": timedelta(seconds=seconds), "allow_http": _allows_http(settings)}


def names_credentials(settings: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment says who asks; without that, only a cloud machine's own metadata can."""
    return any(settings.get(name) for name in _CREDENTIALS)


def lacks_credentials(path: str, error: BaseException) -> RequestError | None:
    """What to raise where an error says that nobody can tell who asks."""
    if not _METADATA.search(str(error)):
        return None
    return RequestError(
        f"No credentials were found for {path}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
        "AWS_SKIP_SIGNATURE=true for a public bucket."
    )


def explanation(path: str, error: BaseException, seconds: float) -> Exception:
    """What to raise for an error of the client library: what the package says, or an error of the operating system.

    Parameters
    ----------
    path : str
    error : exception
    seconds : float
        Time over which requests are tried again.
    """
    text = str(error)
    line = first_line(error)
    bucket = path.removeprefix("s3://").partition("/")[0]
    if (lacking := lacks_credentials(path, error)) is not None:
        return lacking
    if "NoSuchBucket" in text:
        return RequestError(f"{path} cannot be read or written: there is no such bucket as {bucket!r}.")
    if _REGION.search(text):
        region = re.search(r"<Region>([^<]{1,40})</Region>|expecting '([^']{1,40})'", text)
        said = f" ({region[1] or region[2]})" if region else ""
        return RequestError(
            f"{path} cannot be reached: the bucket {bucket!r} lies in another region{said}: set AWS_REGION to it."
        )
    if code := _KEYS.search(text):
        return RequestError(
            f"{path} cannot be reached: the service does not accept the credentials ({code[0]}): check "
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN."
        )
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(errno.ENOENT, line)
    if "403 Forbidden" in text or "401 Unauthorized" in text:
        return PermissionError(errno.EACCES, line)
    if _DOWN.search(text):
        return StoreError(
            f"The service behind {path} does not answer as it should, tried again for up to {seconds:g} seconds "
            f"({line}): see that it can be reached and run the same command again. Nothing that was committed is lost."
        )
    return OSError(errno.EIO, line)


def is_silence(error: BaseException) -> bool:
    """Whether a request got no answer at all, so that it may have arrived or not."""
    return _SILENT.search(str(error)) is not None


def first_line(error: BaseException) -> str:
    """The beginning of an error, on one line."""
    return " ".join((str(error).splitlines() or [type(error).__name__])[0].split())[:200]
