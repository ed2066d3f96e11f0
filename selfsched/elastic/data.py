"""The data of one fit: its loader made elastic, its global batch, its devices."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from selfsched.elastic import lightning_internals as internals
from selfsched.elastic import support
from selfsched.elastic.agreement import Ranks
from selfsched.elastic.loaders import ElasticLoader, Unfit, elastic_loader, is_plain, sharded_loader, unfit
from selfsched.elastic.noise import mixed_seed
from selfsched.elastic.process import RankProcess
from selfsched.elastic.survey import Asked
from selfsched.errors import Unsupported


class FitData:
    """Takes the training loader from wherever the script has it, and gives Lightning ours."""

    def __init__(self, process: RankProcess, trainer: Any, ranks: Ranks, asked: Asked) -> None:
        spec = process.spec
        self.reference_devices = spec.batch_devices or asked.reference_devices
        self._asked = asked
        self.global_batch: int | None = None
        self.elastic = False
        self.seed = mixed_seed(spec.job_seed, _script_seed())
        self._process = process
        self._trainer = trainer
        self._ranks = ranks
        self._loader: ElasticLoader | None = None
        self._saved: dict[str, Any] = {}
        self._replaced: list[tuple[Any, str]] = []

    @property
    def fixed(self) -> bool:
        """Whether the run may never be resized."""
        return self._process.spec.min_devices == self._process.spec.max_devices

    @property
    def allowed_devices(self) -> tuple[int, ...]:
        """Device counts within the limits on which the global batch stays whole."""
        spec = self._process.spec
        counts = range(spec.min_devices, spec.max_devices + 1)
        if not self.elastic or self.global_batch is None:
            return (self._ranks.world_size,)
        return tuple(count for count in counts if self.global_batch % count == 0)

    @property
    def layout(self) -> Any:
        """The `BatchLayout` of the elastic loader, or None."""
        return self._loader.elastic.layout if self._loader is not None else None

    def attach(self, arguments: dict[str, Any], saved: dict[str, Any] | None) -> None:
        """Put our loaders where Lightning will ask for loaders.

        Args:
            arguments: Of the `fit` call, by name; changed in place.
            saved: What `state` returned in an earlier segment.
        """
        self._saved = saved or {}
        self.seed = self._saved.get("seed", self.seed)
        given = arguments.get("train_dataloaders")
        if given is not None and hasattr(given, "train_dataloader"):  # a datamodule in second place
            arguments["train_dataloaders"], arguments["datamodule"] = None, given
            given = None
        module = getattr(arguments["model"], "_orig_mod", arguments["model"])
        source = arguments.get("datamodule") or module
        if given is not None:
            arguments["train_dataloaders"] = None
            source = module
        make = (lambda: given) if given is not None else source.train_dataloader
        self._replace(source, "train_dataloader", make, self._training_loader)
        if self._process.spec.validation == "sharded":
            self._shard_validation(arguments, source)

    def detach(self) -> None:
        """Give module and datamodule their own methods back."""
        for owner, name in self._replaced:
            owner.__dict__.pop(name, None)
        self._replaced.clear()

    def announce(self) -> None:
        """Say once, before training, what one step is."""
        if self._trainer.is_global_zero and self.global_batch is not None and not self._saved:
            print(
                f"selfsched: global batch {self.global_batch} (the script's {self.reference_devices} "
                f"device(s)), the same on {self._counts_in_words()} device(s)",
                file=sys.stderr, flush=True,
            )  # fmt: skip

    def _counts_in_words(self) -> str:
        """Of a plan only those that it uses."""
        planned = self._process.spec.planned_devices
        return ", ".join(str(count) for count in self.allowed_devices if not planned or count in planned)

    def state(self) -> dict[str, Any]:
        """Kept in each checkpoint, in plain types."""
        state: dict[str, Any] = {"seed": self.seed, "global_batch": self.global_batch}
        if self._loader is not None:
            epoch = internals.position(self._trainer)[0]
            state["samples"] = self.layout.samples
            state["epoch"] = epoch
            state["order"] = self._loader.elastic.fingerprint(epoch)
        return state

    def _replace(self, owner: Any, name: str, make: Any, convert: Any) -> None:
        @functools.wraps(make)
        def replacement(*arguments: Any, **named: Any) -> Any:
            return convert(make(*arguments, **named))

        owner.__dict__[name] = replacement
        self._replaced.append((owner, name))

    def _shard_validation(self, arguments: dict[str, Any], source: Any) -> None:
        world, rank = self._ranks.world_size, self._ranks.rank

        def shard(loaders: Any) -> Any:
            if isinstance(loaders, list | tuple):
                return [sharded_loader(loader, world, rank) for loader in loaders]
            return sharded_loader(loaders, world, rank)

        if arguments.get("val_dataloaders") is not None:
            arguments["val_dataloaders"] = shard(arguments["val_dataloaders"])
        elif callable(getattr(source, "val_dataloader", None)):
            self._replace(source, "val_dataloader", source.val_dataloader, shard)

    def _training_loader(self, loader: Any) -> Any:
        if isinstance(loader, list | tuple) and len(loader) == 1:
            loader = loader[0]
        why = unfit(loader)
        if why is None and self._trainer.reload_dataloaders_every_n_epochs:
            why = Unfit("reload_loaders", "reload_dataloaders_every_n_epochs")
        if why is not None:
            return self._unchanged(loader, why)
        if not is_plain(loader):
            self._process.warn("own_sampler", type(loader.batch_sampler.sampler).__name__)
        self.elastic = True
        self.global_batch = loader.batch_sampler.batch_size * self.reference_devices
        self._check_devices()
        self._share_seed()
        try:
            self._loader = elastic_loader(
                loader, seed=self.seed, global_batch=self.global_batch,
                world_size=self._ranks.world_size, rank=self._ranks.rank,
                position=functools.partial(internals.position, self._trainer),
            )  # fmt: skip
        except Unsupported as unsupported:
            self._process.refuse(str(unsupported))
        self._check_same_data()
        return self._loader

    def _unchanged(self, loader: Any, why: Unfit) -> Any:
        if not self.fixed:
            self._process.refuse(support.message(why.code, why.found))
        self._process.warn("counted_position", why.found)
        internals.let_lightning_split(self._trainer, self._asked.distributed_sampler)
        return loader

    def _check_devices(self) -> None:
        spec, batch = self._process.spec, self.global_batch
        if not self.allowed_devices:
            self._process.refuse(
                f"a global batch of {batch} (batch_size x {self.reference_devices} device(s)) is divided by "
                f"no number of devices from {spec.min_devices} to {spec.max_devices}: nothing was trained. "
                "Choose another batch size, or other limits."
            )
        if batch is not None and batch % self._ranks.world_size:
            world, counts = self._ranks.world_size, ", ".join(map(str, self.allowed_devices))
            found = f"{world} devices cannot share a global batch of {batch} evenly ({counts} can)"
            self._process.warn("uneven_shares", found)

    def _share_seed(self) -> None:
        """Rank 0's seed for all: a script may seed its ranks differently, or by the clock."""
        if not self._saved:
            self.seed = self._ranks.gathered(self.seed)[0]

    def _check_same_data(self) -> None:
        saved, loader = self._saved, self._loader
        if not saved or loader is None:
            return
        if saved.get("global_batch") != self.global_batch:
            self._process.refuse(
                f"the global batch was {saved.get('global_batch')} in the segment before and is "
                f"{self.global_batch} now: steps and schedules would change their meaning"
            )
        if saved.get("samples") != loader.elastic.layout.samples:
            self._process.refuse(
                f"the training set had {saved.get('samples')} samples in the segment before and has "
                f"{loader.elastic.layout.samples} now: it must be the same in every segment"
            )
        if saved.get("order") != loader.elastic.fingerprint(int(saved.get("epoch", 0))):
            self._process.refuse(support.message("own_sampler_unsteady"))


def _script_seed() -> int:
    """What the script gave to `seed_everything`, else 0."""
    seed = os.environ.get("PL_GLOBAL_SEED", "0")
    return int(seed) if seed.lstrip("-").isdigit() else 0
