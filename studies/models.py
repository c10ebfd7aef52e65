"""Which model work is done on: as it was asked for, and as the commit or checksum that it is.

Guarantees that a device that is not there is refused in one sentence before any work, whatever the kind of work; that a run of
a Hub model names the commit, not the branch that may be moved by a push, and that every start of the run loads that commit; a
run begun when the branch was recorded goes on under the name it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import store
from ..errors import RequestError
from ..hooks import Extractor, loading
from ..hooks.running import default_batch_tokens


@dataclass(frozen=True)
class ModelRequest:
    """A model as it was asked for; nothing is looked up until it is needed.

    Attributes
    ----------
    name, backend, dtype, device, revision, batch_tokens, share_prefix, compile, context_length
        As in `Extractor.from_pretrained`.
    generating : bool
        Whether batches are generated from, which decides how many tokens they hold where `batch_tokens` is None.
    """

    name: str
    backend: str = "hf"
    dtype: str = "auto"
    device: str | None = None
    revision: str | None = None
    batch_tokens: int | None = None
    share_prefix: str = "auto"
    compile: bool | str = False
    generating: bool = False
    context_length: int | None = None

    @property
    def device_type(self) -> str:
        """Kind of device that the model will run on: "cpu", "cuda", ...

        Raises
        ------
        RequestError
            There is no such kind of device, or not on this machine.
        """
        return str(loading.torch_device(self.device).type)

    def check_device(self) -> None:
        """Refuse a device that is not here (RequestError), before time is spent on anything else."""
        loading.torch_device(self.device)

    @property
    def token_budget(self) -> int:
        """Most padded tokens per batch (RequestError as `device_type`)."""
        return self.batch_tokens or default_batch_tokens(self.device_type, self.generating)

    def load(self, commit: str | None = None) -> Extractor:
        """The model, at `commit` where one is given, else at the revision that was asked for.

        Raises
        ------
        RequestError
            The device, backend or dtype does not exist, or the model cannot be found or read.
        """
        return Extractor.from_pretrained(
            self.name,
            self.backend,
            self.dtype,
            self.device,
            commit or self.revision,
            batch_tokens=self.token_budget,
            share_prefix=self.share_prefix,
            compile=self.compile,
            context_length=self.context_length,
        )


@dataclass(frozen=True)
class RunModel:
    """A run's model: what was asked for, and what that is.

    Attributes
    ----------
    request : ModelRequest
    named, source : ModelSource
        With the branch as it was asked for, and with its commit.
    """

    request: ModelRequest
    named: loading.ModelSource
    source: loading.ModelSource

    @classmethod
    def of(cls, request: ModelRequest, extractor: Extractor | None) -> RunModel:
        """Resolve a model by name.

        Raises
        ------
        RequestError
            There is no such model, or `extractor` holds another one.
        """
        named = loading.resolve(request.name, request.revision)
        source = loading.pinned(named)
        held = None if extractor is None else extractor.source
        if held is not None and held.revision != source.revision:
            raise RequestError(
                f"the extractor holds {held.name} ({held.revision}), but the study is of {request.name} ({source.revision}); give the same model to both"
            )
        return cls(request, named, source)

    def load(self) -> Extractor:
        """The model itself, at the commit that the run names."""
        return self.request.load(self.source.revision if self.source.kind == "hub" else None)

    def settings(self, started: store.Run | None = None) -> dict[str, str | None]:
        """How a run's settings name the model; `started` is the run that is there already.

        The same model under another name (the commit itself, once its branch has moved; the checksum as an earlier version formed
        it) is not another setting.
        """
        by_name, by_commit = (
            f"{s.location}@{s.revision}" if s.kind == "hub" else s.revision for s in (self.named, self.source)
        )
        stored = None if started is None else started.config
        former = self.source.former_revision or by_commit
        if stored is not None and stored.get("model") in (by_name, by_commit, former):
            return {"model": stored["model"], "revision": stored.get("revision")}
        return {"model": by_commit, "revision": self.request.revision}
