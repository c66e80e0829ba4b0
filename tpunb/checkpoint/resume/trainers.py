"""Saves and resumes unmodified trainings of the Trainers of Hugging Face and Lightning.

Each writes its own checkpoint, into a folder of tpunb's. Beside it are what theirs lack: the position in the DataLoader
with its random states, gradients, modes, and means of logged values. If a version of them lacks a method that is
listened to, nothing is saved, and a warning is given.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from inspect import signature
from pathlib import Path
from threading import get_ident
from typing import Any

from tpunb.checkpoint.resume.loop_data import continue_pass
from tpunb.errors import TpunbError, brief, warn_user
from tpunb.instrument import transformers
from tpunb.instrument.lightning import TRAININGS
from tpunb.instrument.registry import Attribute, Priority, around, loaded, replaced
from tpunb.instrument.torch import LOADER_ITER
from tpunb.torchdata.position import AHEAD, LoaderPass
from tpunb.training import seeds, torch_state
from tpunb.training.block import Block, Guarded
from tpunb.training.files import guard
from tpunb.training.fingerprints import Fingerprints, of_arrays
from tpunb.training.fit_start import FitStart
from tpunb.training.positions import Positions
from tpunb.training.program import place_of, user_frame
from tpunb.training.state import DATA, OPTIMIZER, RANDOM, WEIGHTS, arrays

_HUGGING_FACE = transformers.TRAIN.home
_TRAINERS = (_HUGGING_FACE, *TRAININGS)  # modules of the Trainers
_FOLDER, _FILE, _BESIDE = "trainer", "trainer.pt", "beside"
_SAMPLE = 64


class _Data:
    """Data of a training, as a policy asks for them."""

    reason = ""  # warned of when the first checkpoint is saved
    positions = Positions()


class Run(Guarded):
    """A call of a Trainer, from a checkpoint if one is given."""

    data = _Data()
    unsaved_beside = varying = ""

    def __init__(self, trainer: Any, number: int, start: FitStart | None) -> None:
        self.trainer, self.number, self.start = trainer, number, start
        self.fingerprints = Fingerprints(None if start is None else start.resumed)
        self.step_in_epoch = 0  # 0 at its end
        self.is_beginning = False  # a pass over a DataLoader
        self.is_skipped = False  # whether it had ended before the checkpoint, and is restored as it ended
        self.passes: dict[int, _Pass] = {}  # the last one over each DataLoader
        self.position: Any = None if start is None else start.metadata["data"]
        self._first = 0 if start is None else start.step
        self.seen = self._noted = -1  # steps at the last events

    # -- what the Trainers differ in ----------------------------------------------------------------------------------

    name = ""
    steps: int  # that the optimizer has taken

    @property
    def loader(self) -> Any:
        """The DataLoader of the training; None if it has another or several."""

    @property
    def ahead(self) -> int:
        """Number of batches that were drawn and not trained on."""
        return 0

    @property
    def model(self) -> Any:
        """The model that is trained."""

    @property
    def optimizers(self) -> list[Any]:
        """Its optimizers."""
        raise NotImplementedError

    @property
    def progress(self) -> dict[str, Any]:
        """What the Trainer computes from the number of steps, as JSON values."""
        return {}

    @property
    def unsaved(self) -> str:
        """Why the Trainer is not resumed exactly, or ""."""
        return ""

    def write_checkpoint(self, folder: Path) -> str:
        """Write the checkpoint of the Trainer; return why it cannot be read back, or ""."""
        raise NotImplementedError

    def numbers(self) -> dict[str, Any]:
        """Return what the Trainer's checkpoint lacks: tensors and numbers."""
        raise NotImplementedError

    def set_numbers(self, saved: dict[str, Any]) -> None:
        """Set what `numbers` returned."""

    # -- events -------------------------------------------------------------------------------------------------------

    def must_end(self, error: Exception) -> bool:
        """Return whether an error is to end the training, as each is before the position is restored."""
        return super().must_end(error) or self.position is not None

    def iterator(self, loader: Any, begin: Callable[[Any], Iterator[Any]]) -> Iterator[Any]:
        """Return an iterator over a DataLoader, whose position is noted; over the training's first, at the position."""
        followed: _Pass | None = self.guarded(_Pass, self, loader, begin)
        if followed is None:
            return begin(loader)
        self.passes[id(loader)] = followed
        if self.start is not None and self.position is not None and loader is self.loader:
            continue_pass(followed, self.start, self.position, ended=self.position["ended"])
            if not self.position["ended"]:
                return followed
        followed.begin()
        return followed

    def restore(self) -> None:
        """Restore what the Trainer's checkpoint lacks, before the first batch of the training is drawn."""
        assert self.start is not None
        if not self.is_skipped:
            guard.resume_writes()
        saved = torch_state.read(self.start.folder / _BESIDE)
        self.set_numbers(saved["numbers"])
        torch_state.restore_beside(self.model, saved["module"])
        self.position = None

    def end_step(self, *, in_epoch: bool) -> None:
        """Handle the end of a step, or of an epoch."""
        followed = self.passes.get(id(self.loader))
        if self.steps > self._noted and self.fingerprints.is_noted(self.steps - 1):
            prints = [] if followed is None else [*followed.prints]
            batch = prints[-1 - self.ahead] if len(prints) > self.ahead else ""
            values = torch_state.sample([self.model, *self.optimizers], _SAMPLE)
            self.fingerprints.note(self.steps - 1, batch, values)
        self._noted, self.step_in_epoch = self.steps, int(in_epoch)
        for saving in _block.listeners:
            saving.on_step(self, repeated=False)

    def finish(self) -> None:
        """Restore a training that was saved after its last step, of which no batch is drawn."""
        if self.start is not None and self.position is not None:
            seeds.set_host_random_state(self.start.metadata["random"])
            self.restore()

    def forget_end(self) -> None:
        """Remove what a training that is skipped adds to the results of its end, which are restored."""

    def end(self) -> None:
        """Handle the end of the training."""
        self.finish()
        self.fingerprints.write()

    def write(self, folder: Path) -> dict[str, Any]:
        """Write everything that the next step depends on; return its metadata."""
        followed, ended = self.passes.get(id(self.loader)), not self.step_in_epoch
        if followed is None:
            unpositioned, place = "its data are not one DataLoader of PyTorch", {"facts": {}, "taken": 0}
        else:
            unpositioned, place = followed.write(followed.drawn - (0 if ended else self.ahead))
        unwritten = self.write_checkpoint(folder)  # first: Transformers adds its count of operations to its state
        content = {"module": torch_state.beside(self.model), "numbers": self.numbers()}
        unread = torch_state.write(folder / _BESIDE, content)
        unwritten = unwritten or unread
        reason = self.unsaved or unpositioned or unwritten
        return {
            "holds": [WEIGHTS, OPTIMIZER, *([] if unpositioned else [DATA]), RANDOM],
            "exact": not reason,
            "why": reason,
            "trainer": self.name,
            "call": self.number,
            "data": {**place, "ended": ended},
            "progress": self.progress,
            "fingerprints": self.fingerprints.name,
            "random": seeds.host_random_state(),
        }


class _Pass(LoaderPass):
    """A pass of a training, with fingerprints of its last batches."""

    def __init__(self, run: Run, loader: Any, begin: Callable[[Any], Iterator[Any]]) -> None:
        super().__init__(loader, torch_state.LoaderSources(loader), begin, AHEAD)
        self.run = run
        self.prints = deque[str](maxlen=AHEAD + 1)

    def __next__(self) -> Any:
        if self.run.position is not None and self.loader is self.run.loader:
            self.run.restore()
        batch = super().__next__()
        is_noted = not self.run.failed and self.run.fingerprints.is_noted(self.run.steps)
        self.prints.append((self.run.guarded(_print, batch) or "") if is_noted else "")
        return batch


def _print(batch: Any) -> str:
    return of_arrays(arrays(batch))


class _HuggingFace(Run):
    """A call of ``transformers.Trainer.train``."""

    name, epoch = _HUGGING_FACE, 0
    _NUMBERS = ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "current_flos")

    @property
    def steps(self) -> int:  # type: ignore[override]
        return int(self.trainer.state.global_step) if self.position is None else self._first

    @property
    def _feed(self) -> Any:
        return self.trainer.callback_handler.train_dataloader

    @property
    def loader(self) -> Any:
        return getattr(self._feed, "base_dataloader", self._feed)

    @property
    def ahead(self) -> int:
        return int(not getattr(self._feed, "end_of_dataloader", True))

    @property
    def model(self) -> Any:
        return self.trainer.model

    @property
    def optimizers(self) -> list[Any]:
        return [getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)]

    @property
    def progress(self) -> dict[str, Any]:
        state = self.trainer.state
        logged, stopped = len(state.log_history), self.trainer.control.should_training_stop
        return {"epoch": self.epoch, "stopped": stopped, "logged": logged}

    @property
    def unsaved(self) -> str:
        args = self.trainer.args
        if args.world_size > 1 or args.n_gpu > 1 or self.trainer.is_deepspeed_enabled or self.trainer.is_fsdp_enabled:
            return "the training is distributed over devices"
        return ""

    def forget_end(self) -> None:
        if self.start is not None:
            del self.trainer.state.log_history[self.start.metadata["progress"]["logged"] :]

    def write_checkpoint(self, folder: Path) -> str:
        trainer, args = self.trainer, self.trainer.args
        changed = {"output_dir": str(folder), "push_to_hub": False, "save_total_limit": None, "save_only_model": False}
        before = {name: getattr(args, name) for name in changed}
        state, best = copy.deepcopy(trainer.state.stateful_callbacks), trainer.state.best_model_checkpoint
        try:
            vars(args).update(changed)
            with replaced(trainer, "save_model", lambda path, **_: Path(path).mkdir()):
                trainer._save_checkpoint(trainer.model, trial=None)
        finally:
            vars(args).update(before)
            trainer.state.stateful_callbacks, trainer.state.best_model_checkpoint = state, best
        (folder / f"checkpoint-{self.steps}").rename(folder / _FOLDER)
        return ""

    def numbers(self) -> dict[str, Any]:
        numbers = {name: getattr(self.trainer, name) for name in self._NUMBERS}
        return {"state": self.model.state_dict(), **numbers}  # Transformers renames weights in its files

    def set_numbers(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved.pop("state"))
        for name in self._NUMBERS:
            value = saved[name]
            setattr(self.trainer, name, value.to(self.trainer.args.device) if torch_state.is_tensor(value) else value)


class _Lightning(Run):
    """A call of ``lightning.Trainer.fit``."""

    _LOGGED = ("_callback_metrics", "_logged_metrics", "_progress_bar_metrics")
    _pending: dict[str, Any] | None = None  # means of logged values of the epoch, until they are logged again

    @property
    def name(self) -> str:  # type: ignore[override]
        return type(self.trainer.fit_loop).__module__.partition(".loops")[0]

    @property
    def steps(self) -> int:  # type: ignore[override]
        return int(self.trainer.global_step) if self.position is None else self._first

    @property
    def loader(self) -> Any:
        combined = self.trainer.fit_loop._combined_loader
        loaders = [] if combined is None else combined.flattened
        return loaders[0] if len(loaders) == 1 else None

    @property
    def ahead(self) -> int:
        return len(getattr(self.trainer.fit_loop._data_fetcher, "batches", ()))

    @property
    def model(self) -> Any:
        return self.trainer.lightning_module

    @property
    def optimizers(self) -> list[Any]:
        return [*self.trainer.optimizers]

    @property
    def unsaved(self) -> str:
        return "the training is distributed over devices" if self.trainer.world_size > 1 else ""

    def write_checkpoint(self, folder: Path) -> str:
        content = self.trainer._checkpoint_connector.dump_checkpoint(weights_only=False)
        content = {name: value for name, value in content.items() if "hyper_parameters" not in name}
        if not self.step_in_epoch:  # of a run with max_steps, the begin of the next one
            progress = content["loops"]["fit_loop"]["epoch_loop.batch_progress"]
            progress |= {"current": dict.fromkeys(progress["current"], 0), "is_last_batch": False}
        return torch_state.write(folder / _FILE, content)

    @property
    def _means(self) -> dict[str, Any]:
        results = self.trainer.fit_loop.epoch_loop._results
        return {name: each for name, each in results.items() if each.meta.on_epoch and each.is_tensor}

    def numbers(self) -> dict[str, Any]:
        means = self._means.items() if self.step_in_epoch else ()
        logged = {name: dict(getattr(self.trainer._logger_connector, name)) for name in self._LOGGED}
        return {"means": {name: each.metric_state for name, each in means}, "logged": logged}

    def set_numbers(self, saved: dict[str, Any]) -> None:
        self._pending = saved["means"]
        for name, values in saved["logged"].items():
            getattr(self.trainer._logger_connector, name).update(values)

    def add_means(self) -> None:
        """Add the means of values that were logged in the epoch before the checkpoint to those of a step."""
        for name, each in self._means.items() if self._pending else ():
            saved = self._pending.pop(name, None) if self._pending else None
            for state, value in (saved or {}).items():
                present, value = getattr(each, state), value.to(getattr(each, state).device)
                is_extreme = each.meta.is_max_reduction or each.meta.is_min_reduction
                setattr(each, state, each.meta.reduce_fx(value, present) if is_extreme else value + present)


class _Block(Block):
    """The trainings of the outermost block."""

    kind, call = "trainer", "train or fit"

    def __init__(self) -> None:
        super().__init__()
        self.thread = 0
        self.run: Run | None = None
        self.modules, self.unsupported = set[str](), set[str]()  # with hooks, and without

    def enter(self) -> None:
        _install()

    def leave(self) -> None:
        self.modules, self.unsupported = set(), set()


_block = _Block()


@contextmanager
def listening(saving: Any) -> Iterator[None]:  # a `Saving`, which knows the trainings of this module
    """Save the trainings of the block, if the program has imported a Trainer."""
    with _block.listening(saving):
        yield
        tried = _block.modules | _block.unsupported
        missed = next((each for each in _TRAINERS if loaded(each) is not None and each not in tried), None)
        if missed and not saving.saved:
            text = f"trainings of {missed} were not saved: import it before the block of tp.checkpointing"
            warn_user(text, stacklevel=4)


@contextmanager
def starting(start: FitStart) -> Iterator[None]:
    """Start the training of the block that a checkpoint was saved in from there."""
    if (name := start.metadata["trainer"]) not in _TRAINERS:  # a file beside the program could have any name
        problem = f"{start.folder.name} was saved by {brief(name)}, which is no Trainer that is supported"
        raise TpunbError(problem, hint=f"use a checkpoint of {', '.join(_TRAINERS)}")
    import_module(name)
    with _block.starting(start):
        if name not in _block.modules:
            problem = f"this version of {name} is not supported"
            raise TpunbError(problem, hint="use that of the save")
        yield


def _install() -> None:
    """Install the hooks into the Trainers that are imported."""
    for name in _TRAINERS:
        if loaded(name) is None or name in _block.modules | _block.unsupported:
            continue
        hooks = _of_hugging_face() if name == _HUGGING_FACE else _of_lightning(name)
        if missing := [str(attribute) for attribute in hooks if not attribute.places()]:
            _block.unsupported.add(name)
            lacks = f"it has no {', '.join(missing)}"
            warn_user(f"trainings of {name} are not saved: this version is not supported ({lacks})", stacklevel=5)
            continue
        _block.modules.add(name)
        for attribute, hook in hooks.items():
            attribute.listen(around(hook), Priority.CHECKPOINTS, _block.stack)


def _iterate(original: Callable[[Any], Iterator[Any]], loader: Any) -> Iterator[Any]:
    """Begin a pass over a DataLoader."""
    run = _block.run
    if run is None or run.is_beginning or _block.thread != get_ident():
        return original(loader)
    run.is_beginning = True
    try:
        return run.iterator(loader, original)
    finally:
        run.is_beginning = False


def _call(kind: type[Run], given: Callable[..., dict[str, Any]]) -> Callable[..., Any]:
    """Return a hook for the method that trains, with other arguments if it starts from a checkpoint."""

    def train(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        if _block.run is not None:
            return original(trainer, *args, **kwargs)
        place, (number, start, is_skipped) = place_of(user_frame()), _block.begin()
        if is_skipped and start is None:
            return None
        bound = signature(original).bind(trainer, *args, **kwargs)
        if start is not None:
            bound.arguments |= given(original, start)
        _block.thread = get_ident()
        _block.run = run = kind(trainer, number, start)
        run.is_skipped = is_skipped
        try:
            for saving in () if is_skipped else _block.listeners:
                saving.on_begin(run)
            value = original(*bound.args, **bound.kwargs)
            run.guarded(run.end)
            if is_skipped:
                run.guarded(run.forget_end)
            else:
                guard.resume_writes()
                _block.steps = run.steps
                if _block.resumed is not None:
                    _block.resumed.compare_end(number, run.steps)
        finally:
            kept = start.folder if start is not None and is_skipped else None
            for saving in _block.listeners:
                run.guarded(partial(saving.on_end, kept=kept), run, place)
            _block.run = None
        return value

    return train


def _after(event: Callable[[Any, Any], None]) -> Callable[..., Any]:
    """Return a hook that calls `event` with the run, after a method of its Trainer or of a loop of that."""

    def hook(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
        value = original(self, *args, **kwargs)
        if (run := _block.run) is not None and getattr(self, "trainer", self) is run.trainer:
            run.guarded(event, run, self)
        return value

    return hook


def _unless(is_restored: Callable[[Run], bool]) -> Callable[..., Any]:
    """Return a hook for functions that restore what the run restores itself."""

    def hook(original: Callable[..., Any], first: Any, *args: Any, **kwargs: Any) -> Any:
        is_omitted = _block.run is not None and is_restored(_block.run)
        return first if is_omitted else original(first, *args, **kwargs)

    return hook


def _of_hugging_face() -> dict[Attribute, Callable[..., Any]]:
    """Return what is called around each method of Hugging Face's Trainer."""

    def end(run: Run, trainer: Any) -> None:
        is_end, run.seen = run.steps == run.seen, run.steps  # the second call for a step, at the end of an epoch
        is_last = not run.ahead or trainer.control.should_epoch_stop or trainer.control.should_training_stop
        if is_end or not is_last:
            run.end_step(in_epoch=not is_end)

    def begin(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the epoch to begin with and the batches in it: of streams, steps do not give them."""
        found, run = original(trainer, *args, **kwargs), _block.run
        if run is None or run.start is None or run.position is None or run.trainer is not trainer:
            return found
        ended, saved = run.position["ended"], run.start.metadata["progress"]
        if saved["stopped"]:
            return signature(original).bind(trainer, *args, **kwargs).arguments["num_train_epochs"], 0
        return saved["epoch"] + ended, 0 if ended else run.position["taken"]

    def epoch(original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(_block.run, _HuggingFace):
            _block.run.epoch = kwargs.get("epoch", 0)
        original(trainer, *args, **kwargs)

    def finish(original: Callable[..., Any], *args: Any) -> Any:
        if _block.run is not None:
            _block.run.finish()
        return original(*args)

    def given(_: Any, start: FitStart) -> dict[str, Any]:
        return {"resume_from_checkpoint": str(start.folder / _FOLDER)}

    return {
        LOADER_ITER: _iterate,
        transformers.TRAIN: _call(_HuggingFace, given),
        transformers.END_STEP: _after(end),
        transformers.LOAD_CHECKPOINT: _unless(lambda run: run.position is not None),
        transformers.LOAD_RANDOM_STATE: _unless(lambda run: run.start is not None),
        transformers.BEGIN: begin,
        transformers.RUN_EPOCH: epoch,
        transformers.FINISH: finish,
        transformers.SKIP_BATCHES: _unless(lambda run: run.position is not None),
        transformers.SAVES[0]: lambda original, *args, **more: original(*args, **more),  # `write_checkpoint` calls it
    }


def _of_lightning(name: str) -> dict[Attribute, Callable[..., Any]]:
    """Return what is called around each method of Lightning's Trainer and its loops."""

    def given(original: Callable[..., Any], start: FitStart) -> dict[str, Any]:
        if reason := torch_state.unsafe(start.folder / _FILE):
            raise TpunbError(f"{start.folder.name} cannot be read: {reason}", hint="use another checkpoint")
        has_option = "weights_only" in signature(original).parameters
        return {"ckpt_path": str(start.folder / _FILE), **({"weights_only": False} if has_option else {})}

    def end_step(run: _Lightning, loop: Any) -> None:
        run.add_means()
        if run.start is not None:  # Lightning omits schedules by metrics at the end of an epoch that it restarts
            run.trainer.fit_loop._restarting = False
        if not loop.done:  # the last one of an epoch ends with it
            run.end_step(in_epoch=True)

    def end_epoch(run: Run, loop: Any) -> None:
        run.end_step(in_epoch=False)

    training = TRAININGS[name]
    return {
        LOADER_ITER: _iterate,
        training.fit: _call(_Lightning, given),
        training.end_step: _after(end_step),
        training.end_epoch: _after(end_epoch),
    }
