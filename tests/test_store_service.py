"""A service that is down, refuses, stalls or answers nonsense: one sentence each, after the stated time, and nothing else."""

from __future__ import annotations

import http.server
import re
import threading
import time

import pytest

from precollapse import store
from precollapse.cli import main
from precollapse.errors import RequestError, StoreError
from precollapse.store.files.objects import ObjectFiles

pytest.importorskip("obstore", reason="obstore is not installed")

PLAN = store.Plan.build([{"id": "a", "benchmark": "b", "regime": "r", "item_id": "a"}], 1)


def code(name, more=""):
    return f"<Error><Code>{name}</Code><Message>no</Message>{more}</Error>".encode()


ANSWERS = {
    "fails": (500, code("InternalError")),
    "slow": (503, code("SlowDown")),
    "nonsense": (200, b"<html>a page</html>"),
    "binary": (418, b"\x00\xff\xfe"),
    "forbids": (403, code("AccessDenied")),
    "keys": (403, code("InvalidAccessKeyId")),
    "signature": (403, code("SignatureDoesNotMatch")),
    "bucket": (404, code("NoSuchBucket")),
    "moved": (301, code("PermanentRedirect")),
    "region": (400, code("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")),
}


class Handler(http.server.BaseHTTPRequestHandler):
    answer = "fails"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.answer == "closes":
            self.close_connection = True
            return
        if self.answer == "stalls":
            time.sleep(1.5)
            return
        status, body = ANSWERS[self.answer]
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_PUT = do_HEAD = do_POST = do_DELETE = do_GET


@pytest.fixture(scope="module")
def server():
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{served.server_address[1]}"
    served.shutdown()


@pytest.fixture(autouse=True)
def settings(server, monkeypatch):
    for name, value in {
        "AWS_ENDPOINT_URL": server,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(ObjectFiles, "RETRY_SECONDS", 1.0)
    return monkeypatch


def uses():
    return (lambda: store.open_run("s3://runs/x"), lambda: store.open_writer("s3://runs/x", plan=PLAN, config={}))


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        ("fails", StoreError, "tried again for up to 1 seconds"),
        ("slow", StoreError, "run the same command again"),
        ("closes", StoreError, "see that it can be reached"),
        ("nonsense", (StoreError, RequestError), "damaged|Could not write"),
        ("binary", (StoreError, RequestError), "cannot be read|Could not write"),
        ("forbids", RequestError, "no permission"),
        ("keys", RequestError, r"does not accept the credentials \(InvalidAccessKeyId\)"),
        ("signature", RequestError, r"does not accept the credentials \(SignatureDoesNotMatch\)"),
        ("bucket", RequestError, "no such bucket as 'runs'"),
        ("moved", RequestError, "another region: set AWS_REGION"),
        ("region", RequestError, r"another region \(eu-west-1\)"),
    ],
)
def test_each_fault_of_a_service_has_a_sentence(monkeypatch, answer, kind, says):
    monkeypatch.setattr(Handler, "answer", answer)
    for use in uses():
        with pytest.raises(kind, match=says) as raised:
            use()
        assert "\n" not in str(raised.value)


def test_the_stated_time_is_kept(monkeypatch):
    """The client library gave up after ten tries, which took two seconds, whatever time was stated."""
    monkeypatch.setattr(Handler, "answer", "fails")
    monkeypatch.setattr(ObjectFiles, "RETRY_SECONDS", 4.0)
    began = time.monotonic()
    with pytest.raises(StoreError, match="up to 4 seconds"):
        store.open_run("s3://runs/x")
    assert 4.0 <= time.monotonic() - began < 12


def test_a_service_that_comes_back_within_the_time_is_used(monkeypatch):
    monkeypatch.setattr(Handler, "answer", "fails")
    monkeypatch.setattr(ObjectFiles, "RETRY_SECONDS", 20.0)
    threading.Timer(1.5, lambda: setattr(Handler, "answer", "bucket")).start()
    with pytest.raises(RequestError, match="no such bucket"):
        store.open_run("s3://runs/x")


def test_a_service_that_stalls(monkeypatch):
    monkeypatch.setattr(Handler, "answer", "stalls")
    with pytest.raises(StoreError, match="does not answer"):
        store.open_run("s3://runs/x")


class Stalling(http.server.BaseHTTPRequestHandler):
    """Keeps objects, and does not answer the first request of each kind, which it did or did not carry out."""

    kept: dict[str, bytes] = {}
    seen: set[str] = set()
    arrives = True

    def log_message(self, *_):
        pass

    def _answer(self, status=200, body=b"", headers=()):
        self.send_response(status)
        for name, value in (*headers, ("etag", '"e"'), ("last-modified", "Tue, 01 Dec 2026 00:00:00 GMT")):
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _silent(self):
        if self.command in self.seen:
            return False
        self.seen.add(self.command)
        return True

    def do_PUT(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        silent = self._silent()
        exists = self.headers.get("if-none-match") == "*" and self.path in self.kept
        if not exists and (self.arrives or not silent):
            source = self.headers.get("x-amz-copy-source")
            self.kept[self.path] = self.kept[f"/{source.lstrip('/')}"] if source else body
        if silent:
            time.sleep(0.6)
        elif exists:
            self._answer(412, code("PreconditionFailed"))
        else:
            self._answer(200, b"<CopyObjectResult><ETag>e</ETag></CopyObjectResult>")

    def do_POST(self):  # a list of names to delete
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        silent = self._silent()
        names = re.findall("<Key>([^<]*)</Key>", body)
        if self.arrives or not silent:
            self.kept = {path: data for path, data in self.kept.items() if not path.endswith(tuple(names))}
            type(self).kept = self.kept
        deleted = "".join(f"<Deleted><Key>{name}</Key></Deleted>" for name in names)
        time.sleep(0.6) if silent else self._answer(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def do_GET(self):
        found = self.kept.get(self.path)
        self._answer(404, code("NoSuchKey")) if found is None else self._answer(200, found)

    do_HEAD = do_GET


@pytest.mark.parametrize("arrives", [True, False])
def test_a_write_that_is_not_answered_is_sent_again(monkeypatch, arrives):
    """The client library repeats no write that may have arrived; here it is, and one that had arrived counts as its own."""
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stalling)
    threading.Thread(target=served.serve_forever, daemon=True).start()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{served.server_address[1]}")
    monkeypatch.setattr(ObjectFiles, "RETRY_SECONDS", 10.0)
    monkeypatch.setattr(ObjectFiles, "REQUEST_SECONDS", 0.25)
    monkeypatch.setattr(Stalling, "kept", {})
    monkeypatch.setattr(Stalling, "arrives", arrives)
    files = ObjectFiles("s3://runs/x")
    for write in (
        lambda: files.create("a", b"1"),
        lambda: files.stage("b", [b"22"]) == 2,
        lambda: files.replace("a", b"3") is None,
        lambda: files.move("b", "c"),
        lambda: files.remove("c") is None,
    ):
        monkeypatch.setattr(Stalling, "seen", set())
        assert write()
    assert not files.create("a", b"another's")
    assert {name.rpartition("/")[2]: data for name, data in Stalling.kept.items()} == {"a": b"3"}
    served.shutdown()


def test_no_credentials(monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(ObjectFiles, "RETRY_SECONDS", 60.0)
    began = time.monotonic()
    for use in uses():
        with pytest.raises(RequestError, match="No credentials were found for s3://runs/x: set AWS_ACCESS_KEY_ID"):
            use()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize(
    ("endpoint", "says"),
    [
        ("http://127.0.0.1:1", "plain HTTP is not allowed"),
        ("not a url", "no address of a service"),
        ("host:9000", "no address"),
    ],
)
def test_endpoints_that_no_request_could_be_sent_to(monkeypatch, endpoint, says):
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    for use in uses():
        with pytest.raises(RequestError, match=says):
            use()


@pytest.mark.parametrize(("answer", "status"), [("fails", 1), ("bucket", 2), ("forbids", 2), ("region", 2)])
def test_exit_statuses(monkeypatch, capsys, answer, status):
    monkeypatch.setattr(Handler, "answer", answer)
    assert main(["info", "s3://runs/x"]) == status
    out, err = capsys.readouterr()
    assert not out and "Traceback" not in err and "report it" not in err
