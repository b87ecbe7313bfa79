"""The interface of a method.

A method owns what is learnt (prompts, keys, heads) and the mathematics of one step. It has no
training loop, loads no data and opens no files; that is the learner's work.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from cprompt.errors import BackboneError, ConfigError, ModelError
from cprompt.methods.parts.growing_rows import growing_without_copies
from cprompt.methods.registry import METHODS, method_class
from cprompt.ranks import ALONE, Ranks
from cprompt.settings import from_mapping
from cprompt.vit.backbone import Backbone
from cprompt.vit.promptable import Embedded, FrozenViT, Precision

_CAN_CHANGE = "learn with strata, the classifier's default, which can"

Batches = Iterable[tuple[Embedded, Tensor]]
"""(embedded images, targets) pairs that can be iterated over more than once."""

Draws = Mapping[str, Tensor]
"""The random numbers of one step, by name."""

LossPart = Callable[[], dict[str, Tensor]]
"""Computes some terms of a loss, by name, and what they need."""


def add_terms(parts: Iterable[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The terms of a loss from those of its parts: terms of the same name added up.

    >>> terms = add_terms([{"ce": torch.tensor(1.0)}, {"mk": torch.tensor(2.0)}])
    >>> {name: term.item() for name, term in terms.items()}
    {'ce': 1.0, 'mk': 2.0}
    """
    total: dict[str, Tensor] = {}
    for terms in parts:
        for name, term in terms.items():
            total[name] = total[name] + term if name in total else term
    return total


@dataclass(frozen=True)
class Response:
    """A method's answer to B images.

    logits: (B, classes seen). feature: (B, …), what the heads read. query: (B, D), if the method
    uses one. task: (B,), the task whose prompt was used, if the method selects one. familiar: (B,)
    in [0, 1], how much an image looks like one of a class seen, if the method can tell.

    >>> Response(torch.zeros(2, 5), feature=torch.zeros(2, 64), query=None, task=None).logits.shape
    torch.Size([2, 5])
    """

    logits: Tensor
    feature: Tensor
    query: Tensor | None
    task: Tensor | None
    familiar: Tensor | None = None


@dataclass(frozen=True)
class LeftOut:
    """What a method says of images it has learnt, as if it had not learnt them.

    logits: (k, classes seen). position: (k,), their classes. familiar: (k,), see `Response`.

    >>> LeftOut(torch.zeros(2, 3), torch.tensor([0, 2]), torch.ones(2)).position.tolist()
    [0, 2]
    """

    logits: Tensor
    position: Tensor
    familiar: Tensor


@dataclass(frozen=True)
class ClassifierDefaults:
    """How the photo classifier uses a method by default.

    >>> ClassifierDefaults(settings={"length": 5}, temperature=10.0).training["lr"]
    0.05
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the method that differ from its own defaults."""
    training: Mapping[str, Any] = field(default_factory=lambda: {"lr": 0.05})
    """Settings of training that differ from `TrainingConfig`'s defaults."""
    temperature: float = 1.0
    """Divides the logits until there are enough held-out photos to fit a temperature."""


class Method(nn.Module):
    """A continual learner on a frozen backbone.

    For every task the learner calls `begin_task`, then `loss` for each batch, then `end_task` with
    the task's training images once more, then `close_task`. Classes are named by their arrival
    position: the classes of a task are `known`, …, `known + n - 1`. Predictions are per image: no
    output may depend on what else is in the batch.

    All parameters with `requires_grad` are trained; a method without any, or without a `loss`, is
    not trained. `state_dict` is exactly what was learnt, since the backbone is not part of it.

    `respond` is the one way from images to an answer. It puts the steps together: `embed`, `query`
    and `choose` if the method has them, `feature`, `answer`. The steps are separate so that
    evaluation, which answers the same images after every task, can keep what does not change: a
    query never changes, a feature does not if `features_are_final`.

    >>> from cprompt import load_backbone
    >>> method = create_method("finetune", load_backbone("test_vit", "random:0", image_size=48))
    >>> method.begin_task(3, torch.Generator().manual_seed(0))
    >>> method.respond(torch.zeros(2, 3, 48, 48)).logits.shape
    torch.Size([2, 3])
    """

    name: ClassVar[str]
    Config: ClassVar[type]
    uses_query: ClassVar[bool] = False
    """Whether a pass without prompts, which gives the query, comes before the prompted pass."""
    selects_task: ClassVar[bool] = False
    """Whether each image is answered with the prompt of one task, chosen by its query."""
    features_are_final: ClassVar[bool] = False
    """Whether an image's feature under a given task's prompt never changes after that task."""
    needs_prompts: ClassVar[bool] = True
    """Whether the backbone must be a `FrozenViT`; if not, any `Backbone` will do."""
    takes_returning: ClassVar[bool] = False
    """Whether a task may contain images of earlier classes, which keep their positions."""
    single_task: ClassVar[bool] = False
    """Whether all classes must come in one task, as for an upper bound."""
    extra_views: int = 0
    """How many randomly augmented views of every image `end_task` gets beside the test view."""
    tasks_leave_no_trace: ClassVar[bool] = False
    """Whether the shapes of what is stored do not show how classes came in tasks."""
    adds_over_ranks: ClassVar[bool] = False
    """Whether `end_task` adds up what several processes counted (`ranks`), each of its own images.
    If not, every process is given all images of the task."""
    answers_singly: bool = True
    """Whether an answer never depends on the other images in its batch, as it should not."""
    ranks: Ranks = ALONE
    """The processes that share the run; see `cprompt.ranks`."""
    classifier_defaults: ClassVar[ClassifierDefaults] = ClassifierDefaults()

    def __init_subclass__(cls) -> None:
        """A class that changes `loss` alone is trained by what it says, not by inherited parts."""
        super().__init_subclass__()
        if "loss" in vars(cls) and "loss_parts" not in vars(cls):
            cls.loss_parts = Method.loss_parts  # type: ignore[method-assign]

    def __init__(self, backbone: FrozenViT, config: Any) -> None:
        super().__init__()
        # Not a child module: the backbone is not learnt, so it is not saved.
        self.__dict__["backbone"] = backbone
        self.config = config
        self.task_sizes: list[int] = []

    backbone: FrozenViT

    def _apply(self, *args: Any, **kwargs: Any) -> Method:
        """Move or change all tensors; a device without float64, such as mps, may not take them."""
        try:
            applied: Method = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        except TypeError as error:
            if "float64" not in str(error):
                raise
            raise ConfigError(
                f"{self.name} sums in float64, which this device does not have", hint="use cpu"
            ) from error
        return applied

    @property
    def n_tasks(self) -> int:
        """Tasks begun so far."""
        return len(self.task_sizes)

    @property
    def n_classes(self) -> int:
        """Classes seen so far, those of the current task included."""
        return sum(self.task_sizes)

    @property
    def known(self) -> int:
        """Classes of all tasks before the latest one."""
        return sum(self.task_sizes[:-1])

    # --- learning -------------------------------------------------------------------------------

    @classmethod
    def check_tasks(cls, n_tasks: int) -> None:
        """Raise a ConfigError if the method cannot learn so many tasks; call it before a run."""
        if cls.single_task and n_tasks > 1:
            raise ConfigError(
                f"{cls.name} sees all classes in one task",
                hint="set --stream.tasks 1, or use --method finetune for a stream of tasks",
            )

    def begin_task(self, n_classes: int, rng: torch.Generator) -> None:
        """Make room for `n_classes` new classes; initial values are drawn from `rng` (CPU)."""
        self.check_tasks(self.n_tasks + 1)
        self.task_sizes.append(n_classes)

    def draw(self, n_images: int, rng: torch.Generator, multiple: int = 1) -> Draws:
        """The random numbers that a step on `n_images` images needs, as tensors by name.

        All come from `rng`, a CPU generator that the learner seeds for each step, and are drawn
        before the step, so that the step can be captured and replayed as a CUDA graph. A length
        that depends on chance is rounded up to a `multiple`, so that few different graphs suffice.
        """
        return {}

    def split_draws(self, draws: Draws, n_images: int, part: slice) -> Draws:
        """What of `draws`, made for `n_images` images, those in `part` need.

        Used if several processes share a batch. By default every tensor has one row per image.
        """
        for name, tensor in draws.items():
            if tensor.dim() == 0 or len(tensor) != n_images:
                raise ConfigError(
                    f"{self.name} cannot share a batch among processes: what it draws as {name!r} "
                    "does not have one row per image",
                    hint=f"define {type(self).__name__}.split_draws, or run without torchrun",
                )
        return {name: tensor[part] for name, tensor in draws.items()}

    def loss(self, embedded: Embedded, targets: Tensor, draws: Draws) -> dict[str, Tensor]:
        """The loss terms of one batch, by name; their sum is minimised. None: nothing is trained.

        `embedded` holds B images, `targets` (B,) their arrival positions, `draws` is what
        `draw(B, …)` returned. Do not read values back (`item`, boolean masks): the device would
        have to wait, and the step could not be captured as a CUDA graph.

        Terms are means over the images, or do not depend on them. A term that couples images of a
        batch must pass what it reads of them through `embedded.gather`: several processes may
        share the batch.
        """
        return {}

    def loss_parts(self, embedded: Embedded, targets: Tensor, draws: Draws) -> list[LossPart]:
        """`loss` in parts, none of which needs another: terms of the same name add up.

        On a GPU each part has its passes and its gradient beside those of the others, so only a
        method with several passes gains from parts. The first goes before the others where they
        meet; the longest should be it. By default `loss` is the only one.
        """
        return [partial(self.loss, embedded, targets, draws)]

    def end_task(self, batches: Batches) -> None:
        """Use the task's training images once more, without gradient.

        They come under the test view, each together with `extra_views` random views of it; see
        `Embedded.views`. Targets are repeated accordingly.
        """

    def close_task(self) -> None:
        """Freeze what the task learnt; must depend on nothing but the method's own state."""

    def left_out(self) -> LeftOut | None:
        """Answers to images that were learnt, each left out, by which answers are calibrated.

        None if the method cannot tell. Then some images must be held out from learning.
        """
        return None

    def remember(self) -> None:
        """Keep what `judge` needs of the images that `end_task` is given next, if possible."""

    def judge(self, batches: Batches | None = None) -> Tensor | None:
        """Logits (n, classes seen) of labelled images, as if none of them had been learnt.

        Of those in `batches`, which are as for `end_task` and may have been learnt or not. Without
        any, of those counted since `remember`. None if the method cannot tell.
        """
        return None

    def kept_keys(self) -> frozenset[int]:
        """Content keys of images that were learnt, as far as the method keeps them."""
        return frozenset()

    def forget(self, at: int, batches: Batches | None = None) -> None:
        """Drop the class at position `at`; later ones move up by one.

        `batches`, if given, are all of its images, as for `end_task`: then nothing of the class is
        left.
        """
        raise ModelError(f"the method {self.name} cannot forget a class", hint=_CAN_CHANGE)

    def merge(self, other: Method, positions: Sequence[int], n_new: int) -> None:
        """Add all that `other`, the same method on the same backbone, has learnt, as a task.

        Its class i is the class at `positions[i]` here; the last `n_new` positions are new.
        """
        raise ModelError(f"models of the method {self.name} cannot be merged", hint=_CAN_CHANGE)

    def count_images(self, embedded: Embedded, targets: Tensor) -> None:
        """Add images of the open task to what is known, and work nothing out: `end_task` does.

        Images and targets are as for `end_task`. Only for methods that count, not train.
        """
        raise ModelError(f"the method {self.name} does not learn by counting", hint=_CAN_CHANGE)

    def absorb(self, other: Method, positions: Sequence[int]) -> None:
        """Add what `other` has counted to the open task, and work nothing out: `end_task` does.

        Its class i is the class at `positions[i]` here. Counts add up, so that many processes can
        each count some of the images.
        """
        raise ModelError(f"the method {self.name} does not learn by counting", hint=_CAN_CHANGE)

    def _drop_position(self, at: int) -> None:
        """Make the task of the class at position `at` smaller by one."""
        for task, end in enumerate(itertools.accumulate(self.task_sizes)):
            if at < end:
                self.task_sizes[task] -= 1
                return

    def parameter_groups(self) -> list[dict[str, Any]]:
        """Optimiser groups of the trainable parameters; `lr_scale` multiplies a group's lr."""
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    # --- answering ------------------------------------------------------------------------------

    def respond(
        self,
        images: Tensor,
        *,
        query: Tensor | None = None,
        task: Tensor | None = None,
        precision: Precision = "fp32",
    ) -> Response:
        """Answer images (B, 3, H, W).

        `query` (B, D), if given, is not computed again. If the method `selects_task`, `task` (B,)
        says whose prompts to use instead of the chosen ones.
        """
        embedded = self.embed(images, precision)
        must_choose = self.selects_task and task is None
        if query is None and self.uses_query and (must_choose or not self.selects_task):
            query = self.query(embedded)
        if must_choose:
            assert query is not None, f"{type(self).__name__} selects a task but makes no query"
            task = self.choose(query)
        feature = self.feature(embedded, query, task)
        return Response(self.answer(feature), feature, query, task)

    def ask(self, images: Tensor, precision: Precision = "fp32") -> Tensor:
        """The queries (B, D) alone: the first steps of `respond`, to be passed to it later."""
        return self.query(self.embed(images, precision))

    def forward(self, images: Tensor, task: Tensor | None = None) -> Tensor:
        """Logits (B, n_classes) over all classes seen; see `respond`."""
        return self.respond(images, task=task).logits

    def embed(self, images: Tensor, precision: Precision = "fp32") -> Embedded:
        """Images (B, 3, H, W) to what every pass over them starts from."""
        return self.backbone.embed(images, precision)

    def query(self, embedded: Embedded) -> Tensor:
        """Each image's feature (B, D) from the backbone without prompts; only if `uses_query`."""
        raise TypeError(f"{type(self).__name__} does not define a query")

    def choose(self, query: Tensor) -> Tensor:
        """The task (B,) whose prompt is used for each query (B, D); only if `selects_task`."""
        raise TypeError(f"{type(self).__name__} does not choose a task's prompt")

    def feature(self, embedded: Embedded, query: Tensor | None, task: Tensor | None) -> Tensor:
        """What the heads read of each image: (B, …).

        `task` (B,) says whose prompts to use and is given if `selects_task`. `query` (B, D) is
        given if `uses_query`, except where it would only serve to choose a task already given.
        """
        raise TypeError(f"{type(self).__name__} does not define a feature")

    def answer(self, feature: Tensor) -> Tensor:
        """Logits (B, n_classes) over all classes seen."""
        raise TypeError(f"{type(self).__name__} does not define an answer")

    def patch_shares(
        self, images: Tensor, positions: Tensor, precision: Precision = "fp32"
    ) -> Tensor | None:
        """What each patch of images (B, 3, H, W) adds to the logit of class `positions` (B,).

        (B, rows, columns), beyond what the patch adds to logits on average over classes, which no
        probability depends on. None if the method cannot tell.
        """
        return None

    def key_similarity(self, query: Tensor) -> Tensor | None:
        """cos(q, k) of queries (B, D) with all keys: (B, keys); used to explain an answer.

        Keys are one per class or one per task, in order of arrival. None without such keys.
        """
        return None


M = TypeVar("M", bound=type[Method])


def register(name: str, config: type, *, title: str | None = None) -> Callable[[M], M]:
    """Class decorator: make a method known as `name`, with the dataclass `config` as its settings.

    `title` is its name in tables and figures; by default `name`.

    >>> @dataclass(frozen=True)
    ... class NoSettings:
    ...     "Nothing to set."
    >>> @register("guess", NoSettings, title="Guessing")
    ... class Guess(Method):
    ...     "Answers the first class, always."
    >>> METHODS.title("guess")
    'Guessing'
    """

    def add(cls: M) -> M:
        if not dataclasses.is_dataclass(config):
            raise ConfigError(f"{config.__name__}, the settings of {name!r}, is not a dataclass")
        cls.name = name
        cls.Config = config
        METHODS.add(cls, title)
        return cls

    return add


def create_method(
    name: str, backbone: Backbone, settings: Mapping[str, Any] | None = None
) -> Method:
    """Build the method `name` with the given settings, the rest at their defaults.

    A BackboneError if the method prompts and the backbone cannot be prompted.

    >>> from cprompt import load_backbone
    >>> backbone = load_backbone("test_vit", "random:0", image_size=48)
    >>> create_method("cprompt", backbone, {"tau": 1.2}).config.tau
    1.2
    """
    cls = method_class(name)
    config: Any = from_mapping(cls.Config, settings or {}, where=f"method {name}")
    if cls.needs_prompts and not isinstance(backbone, FrozenViT):
        raise BackboneError(
            f"{name} needs a backbone that can be prompted, a timm VisionTransformer with a class "
            f"token; {backbone.name} is not one",
            hint="choose for example vit_base_patch16_224.augreg_in21k_ft_in1k or "
            "vit_small_patch14_dinov2.lvd142m, or the method strata, which takes any backbone",
        )
    # `Method` is typed for methods that prompt; the others use what every backbone has.
    return cls(cast(FrozenViT, backbone), config)


def rebuild(method: Method, sizes: Iterable[int], state: Mapping[str, Tensor], open_: bool) -> None:
    """Bring a fresh method to a saved state.

    Tasks of the given sizes are begun and closed so that every tensor has its shape (the last
    task stays open if `open_`). Then all values are loaded from `state`.
    """
    rng = torch.Generator().manual_seed(0)
    sizes = list(sizes)
    closed, last = (sizes[:-1], sizes[-1:]) if open_ else (sizes, [])
    # Room made task by task is copied with every task; for thousands of tasks that takes hours.
    at_once = [sum(closed)] if closed and method.tasks_leave_no_trace else closed
    with growing_without_copies(method):
        for size in at_once:
            method.begin_task(size, rng)
            method.close_task()
    method.task_sizes = closed
    for size in last:
        method.begin_task(size, rng)
    method.load_state_dict(dict(state), strict=True)
