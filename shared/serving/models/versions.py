"""The versions that are loaded: which one answers whom, and how one takes over from another.

A model is known to callers by its name, and may be there in several versions at once, each with an engine of its own.
The model's router shares the callers out among them. A request may name one version as well: "NAME@v2". Which version
answers is settled once, when the request comes; it is that one's to the end, however the shares move meanwhile.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from shared import YOURS
from shared.serving.engines.engine import Engine, EngineFailed
from shared.serving.errors import ApiError
from shared.serving.models.loading import Gate, LoadText, bring_up, compare
from shared.serving.models.promotion import RegressionGate
from shared.serving.models.router import Router
from shared.serving.models.text_model import TextModel, model_name
from shared.serving.models.version import (
    SEPARATOR,
    NotReady,
    Refused,
    UnknownModel,
    Version,
    check_names,
    invalid,
    reason,
)

logger = logging.getLogger(__name__)


class Versions:
    """All versions of all models. Its methods are called on one event loop.

    make_engine: (folder, version's name) -> an engine, not yet started. load_text: (folder, model's name) -> the
    tokenizer and what goes with it; slow, so it runs in a thread. gate: compares a new version with the one that
    serves. telemetry: is told what happens, and of each engine's steps.
    """

    def __init__(
        self,
        make_engine: Callable[[Path, str], Engine],
        load_text: LoadText = TextModel.load,
        telemetry: Any = None,
        gate: Gate | None = None,
    ) -> None:
        self._make_engine, self._load_text, self._telemetry = make_engine, load_text, telemetry
        self._gate = gate or RegressionGate()
        self._versions: dict[str, Version] = {}
        self._routers: dict[str, Router] = {}  # model -> router; a model without one isn't served yet
        self._numbers = count(1)
        self._turn = asyncio.Lock()  # two models that load at once would both be told there is enough memory

    def get(self, name: str) -> Version:
        """Raises UnknownModel."""
        if name not in self._versions:
            there = ", ".join(map(repr, self._versions)) or "none"
            raise ApiError(404, f"There is no version {name!r}; there are {there}.", code="version_not_found")
        return self._versions[name]

    def models(self) -> list[dict[str, Any]]:
        """What callers may ask for, in OpenAI's form: each model by its name, and each version of it that is ready.

        In the order in which the models came: the first is what a page takes that has no choice yet.
        """
        ready = [version for version in self.list() if version.state == "ready"]
        created = {
            model: min(version.created for version in ready if version.model == model)
            for model in self._routers
            if any(version.model == model for version in ready)
        }
        created |= {version.id: version.created for version in ready}
        return [
            {"id": id, "object": "model", "created": at, "owned_by": "your-own-parts"} for id, at in created.items()
        ]

    def model(self, id: str) -> dict[str, Any]:
        """One of them. Raises UnknownModel."""
        models = {model["id"]: model for model in self.models()}
        if id not in models:
            raise UnknownModel(id, [*models])
        return models[id]

    def shares(self, model: str) -> dict[str, float]:
        """The share of the model's requests that each of its versions gets; nothing for a version that gets none."""
        router = self._routers.get(model)
        return {} if router is None else {name: share for name, share in router.shares.items() if share > 0}

    def serving(self, model: str) -> Version | None:
        """The version that has the largest share."""
        shares = self.shares(model)
        return self._versions[max(shares, key=lambda name: shares[name])] if shares else None

    def pick(self, model: str, request_id: str) -> Version:
        """Who answers a request: the version it names, or one by the shares. The same id gets the same version as long
        as the shares stand. Raises UnknownModel and NotReady."""
        all_models = {version.model for version in self.list() if version.state not in ("failed", "unloading")}
        if model in all_models or model in self._routers:
            if model not in self._routers:
                raise NotReady(f"{model!r} is not ready yet; see /health/ready.")
            return self._versions[self._routers[model].pick(request_id)]
        of_model, _, name = model.rpartition(SEPARATOR)
        version = self._versions.get(name)
        if version is None or version.model != of_model:
            raise UnknownModel(model, [found["id"] for found in self.models()] or sorted(all_models))
        if version.state != "ready":
            raise NotReady(f"{model!r} can't answer: it is {version.state}.")
        return version

    def add(self, version: Version) -> None:
        """Take in a version that is ready, started and all. The first one of a model serves it."""
        self._check_free(version.name, version.model)
        self._versions[version.name] = version
        self._listen_to(version)
        self._made_ready(version)

    def load(self, path: Path, model: str | None = None, name: str | None = None, gate: Gate | None = None) -> Version:
        """Begin to load a version beside those there are, and return at once; `settled` is the task to wait for.

        model: the name callers use, by default the folder's. name: the version's own, by default the next of v1, v2, …
        gate: another than the usual one. Raises ApiError for a name that can't be had.
        """
        model = model_name(path) if model is None else model
        if name is None:
            check_names("new", model)  # a load that is refused shall take no number
            name = next(n for n in map("v{}".format, self._numbers) if n not in self._versions)
        self._check_free(name, model)
        version = Version(name, model, path, self._make_engine(path, name))
        self._versions[name] = version
        self._listen_to(version)
        self._tell("version_loading", version, f"loading {path}")
        version.settled = asyncio.get_running_loop().create_task(self._load(version, gate or self._gate))
        return version

    async def _load(self, version: Version, gate: Gate) -> None:
        try:
            async with self._turn:
                others = [v for v in self.list() if v is not version and v.engine.state not in ("failed", "stopped")]
                await bring_up(version, others, self._load_text)
                if (baseline := self.serving(version.model)) is not None:
                    await compare(version, baseline, gate)
        except BaseException as error:
            version.state, version.error, version.failure = "failed", reason(error), error
            known = isinstance(error, EngineFailed | ApiError | ValueError | OSError) or version.error.startswith(YOURS)
            if isinstance(error, Exception) and not known:
                logger.error("version %s can't be loaded", version.name, exc_info=error)  # a fault of ours
            await version.engine.stop()
            if not isinstance(error, Exception):  # it was wanted, and whoever wanted it tells
                raise
            self._tell("version_failed", version, version.error)  # then its numbers are forgotten: no step may follow
            return
        if version.gate.get("reasons"):
            version.state, version.error = "rejected", "; ".join(version.gate["reasons"])
            self._tell("version_rejected", version, version.error)
        else:
            self._made_ready(version)

    def _made_ready(self, version: Version) -> None:
        version.state = "ready"
        self._tell("version_ready", version, "it can answer")
        if version.model not in self._routers:
            self._routers[version.model] = Router({version.name: 1.0})
            self._tell("version_promoted", version, f"it is the first of {version.model}")

    def shift(self, shares: Mapping[str, float], force: bool = False) -> None:
        """Give the versions of one model these shares of its requests, and those not named none.

        force: a rejected version, too. Raises ApiError, and nothing has changed.
        """
        versions = [self.get(name) for name in shares]
        if len(models := {version.model for version in versions}) != 1:
            raise invalid("shares: name versions of one model; these are of "
                          f"{', '.join(sorted(models)) or 'none'}.", "shares")  # fmt: skip
        (model,) = models
        try:
            router = Router(shares)
        except ValueError as error:
            raise invalid(f"shares: {error}.", "shares") from None
        for version in versions:
            if shares[version.name] > 0:
                version.check_may_serve(force)
        self._accept(versions)
        self._routers.setdefault(model, router).set_shares(shares)
        self._tell("traffic_shifted", versions[0], ", ".join(f"{name} {share:.0%}" for name, share in shares.items()))

    def promote(self, name: str, force: bool = False) -> None:
        """Give a version all requests of its model. Raises ApiError as `shift` does."""
        version = self.get(name)
        version.check_may_serve(force)
        self._accept([version])
        self._routers.setdefault(version.model, Router({name: 1.0})).promote(name)
        self._tell("version_promoted", version, f"it answers all requests for {version.model}")

    def rollback(self, model: str | None = None) -> None:
        """Go back to the shares before the latest change. model: may be left out where there is only one."""
        if model is None:
            if len(self._routers) != 1:
                raise invalid(f"model: say which one of {', '.join(sorted(self._routers))}.", "model")
            (model,) = self._routers
        if model not in self._routers:
            raise UnknownModel(model, sorted(self._routers))
        try:
            self._routers[model].rollback()
        except ValueError as error:
            message = str(error)
            raise Refused(f"{message[:1].upper()}{message[1:]}.", "nothing_to_roll_back") from None
        shares = self.shares(model)
        said = ", ".join(f"{name}: {share:.0%}" for name, share in shares.items())
        self._tell("traffic_rolled_back", self._versions[next(iter(shares))], f"back to {said} of the requests")

    def start_unload(self, name: str) -> asyncio.Task[None]:
        """Take a version that doesn't serve out: its requests are answered to the end, then its engine is stopped.

        The only version of a model takes the model with it, but for this server's first. Raises ApiError for one that
        has a share of the requests beside others, or of that model's; and for one that is leaving already.
        """
        version = self.get(name)
        alone = [other for other in self.list() if other.model == version.model] == [version]
        if alone and version.model in list(self._routers)[1:]:
            del self._routers[version.model]
        if share := self.shares(version.model).get(name, 0):
            raise Refused(f"{name!r} answers {share:.0%} of the requests for {version.model!r}: promote another first.",
                          "version_serves")  # fmt: skip
        if version.state == "unloading":
            raise Refused(f"{name!r} is being unloaded already.", "version_unloading")
        version.state = "unloading"
        if (router := self._routers.get(version.model)) is not None:
            router.forget(name)
        self._tell("version_unloading", version, f"{version.num_open} requests are being answered")
        return asyncio.get_running_loop().create_task(self._unload(version))

    async def _unload(self, version: Version) -> None:
        if version.settled is not None:
            version.settled.cancel()
            await asyncio.gather(version.settled, return_exceptions=True)
        version.state = "unloading"
        await version.emptied()
        await version.engine.stop()
        self._versions.pop(version.name, None)
        self._tell("version_unloaded", version, "its engine has stopped")

    async def stop(self) -> None:
        """Stop all engines, and all loading."""
        loading = [version.settled for version in self.list() if version.settled is not None]
        for task in loading:
            task.cancel()
        await asyncio.gather(*loading, return_exceptions=True)
        await asyncio.gather(*(version.engine.stop() for version in self.list()))
        for version in self.list():
            if isinstance(version.failure, asyncio.CancelledError):
                self._tell("version_unloaded", version, version.error)

    def _check_free(self, name: str, model: str) -> None:
        check_names(name, model)
        if name in self._versions:
            message = f"name: {name!r} is in use; unload that version first, or take another name."
            raise Refused(message, "name_in_use", "name")

    def _accept(self, versions: list[Version]) -> None:
        for version in versions:
            if version.state == "rejected":
                self._tell("version_forced", version, f"the operator overrules: {version.error}")
                version.state, version.error = "ready", ""

    def _listen_to(self, version: Version) -> None:
        if self._telemetry is not None:
            version.engine.on_step = partial(self._telemetry.step, version.model, version.name)
            version.engine.on_event = lambda kind, text: self._tell(kind, version, text)

    def _tell(self, kind: str, version: Version, text: str) -> None:
        if self._telemetry is not None:
            self._telemetry.event(kind, f"{version.name}: {text}", version=version.name, model=version.model)

    def list(self) -> list[Version]:  # the last one, for in the class its name hides the type
        """All versions, in the order in which they came; those that failed or are leaving, too."""
        return [*self._versions.values()]
