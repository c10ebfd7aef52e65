"""Which model a run is of.

Guarantees that a run of a Hub model names the commit, not the branch that may be moved by a push, and that every start of the
run loads that commit; a run begun when the branch was recorded goes on under the name it has.
"""

from __future__ import annotations

from dataclasses import dataclass

from .. import store
from ..errors import RequestError
from ..hooks import Extractor
from ..hooks import models as hook_models


@dataclass(frozen=True)
class RunModel:
    """A run's model as it was asked for, and as the commit or checksum that it is.

    Attributes
    ----------
    asked : str or None
        The revision that was asked for.
    named, source : ModelSource
        With the branch as it was asked for, and with its commit.
    """

    asked: str | None
    named: hook_models.ModelSource
    source: hook_models.ModelSource

    @classmethod
    def of(cls, model: str, revision: str | None, extractor: Extractor | None) -> RunModel:
        """Resolve a model by name.

        Raises
        ------
        RequestError
            There is no such model, or `extractor` holds another one.
        """
        named = hook_models.resolve(model, revision)
        source = hook_models.pinned(named)
        held = None if extractor is None else extractor.source
        if held is not None and held.revision != source.revision:
            raise RequestError(
                f"the extractor holds {held.name} ({held.revision}), but the study is of {model} ({source.revision}); give the same model to both"
            )
        return cls(revision, named, source)

    @property
    def revision(self) -> str | None:
        """What to load: the commit of a Hub model; None for local files."""
        return self.source.revision if self.source.kind == "hub" else None

    def settings(self, existing: store.Run | None = None) -> dict[str, str | None]:
        """How a run's settings name the model; `existing` is the run that is there already.

        The same model under another name (the commit itself, once its branch has moved) is not another setting.
        """
        by_name, own = (
            f"{s.location}@{s.revision}" if s.kind == "hub" else s.revision for s in (self.named, self.source)
        )
        stored = None if existing is None else existing.config
        if stored is not None and stored.get("model") in (by_name, own):
            return {"model": stored["model"], "revision": stored.get("revision")}
        return {"model": own, "revision": self.asked}
