"""Export of a classifier as one ONNX graph from pixels to probabilities.

The graph, with prompts and their selection, is traced from the method itself by torch.export, so
there is no second implementation. The file is written only after onnxruntime's answers to images
agree with the classifier's.
"""

from __future__ import annotations

import copy
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cprompt import __version__
from cprompt.classifier import calibration
from cprompt.classifier.classifier import ContinualClassifier
from cprompt.classifier.photo_sources import UNKNOWN, as_photos
from cprompt.classifier.photos import DETAIL, PhotoLike, decode
from cprompt.data.pipeline.views import Preparation, apply_views
from cprompt.errors import ConfigError, ModelError
from cprompt.files import check_writable, write_bytes
from cprompt.methods.base import Method
from cprompt.vit.promptable import PromptableViT

OPSET = 18
"""Default operator set: the oldest that torch exports to, supported since onnxruntime 1.14."""

TOLERANCE = 1e-4
"""Largest allowed difference between the graph and the classifier: absolute for probabilities,
relative to the largest logit for logits, if that is above 1."""

LARGEST = 2**31 - 2**20
"""Bytes of tensors that fit into one file: protobuf's limit is 2 GiB, including the graph."""

_INPUT, _OUTPUTS = "pixels", ("probabilities", "prompt", "logits", "familiarity")
_BATCH = "batch"
_IMAGES = 9
_NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class ExportInfo:
    """What was written, and how well it agrees with the classifier."""

    path: Path
    bytes: int
    opset: int
    difference: float
    """Largest difference found between the graph and the classifier; see `TOLERANCE`."""
    checked: int
    """Number of photos in `check`; some random images are checked as well."""
    metadata: dict[str, str]
    """The metadata in the file; docs/export.md lists the keys."""


def export_onnx(
    classifier: ContinualClassifier, path: str | Path, *, opset: int = OPSET, check: Any = ()
) -> ExportInfo:
    """Write the classifier to `path` as one ONNX file, after checking that its answers agree.

    Input: `pixels`, float32 (batch, 3, S, S), RGB in [0, 1], resized and cropped as the file's
    metadata says, not normalised. Outputs:

    - `probabilities`, float32 (batch, names): calibrated, in the order of `classes_`.
    - `prompt`, int64 (batch,): the number of the learnt batch, from 1, whose prompt was used; 0 if
      the method does not select one.
    - `logits`, float32 (batch, positions): before calibration.
    - `familiarity`, float32 (batch,): the answer is unknown below the metadata's `threshold`.

    The graph computes in float32, whatever device and precision the classifier has. Classifier and
    graph answer random images and those in `check`, which takes one image or many, as `predict`
    does. If the answers differ, a ModelError is raised and `path` does not change.
    """
    path = Path(path)
    onnx, runtime = _modules()
    check_writable(path)  # now: tracing a large model takes minutes
    newest = onnx.defs.onnx_opset_version()
    if not OPSET <= opset <= newest:
        raise ConfigError(f"opset {opset} must be from {OPSET} to {newest}")
    method = _plain_copy(classifier.method_)
    preparation = classifier.preparation_
    proto = _traced(_Graph(classifier, method), preparation.size, opset)
    metadata = _metadata(classifier)
    onnx.helper.set_model_props(proto, metadata)
    onnx.checker.check_model(proto, full_check=True)
    written = proto.SerializeToString()

    photos = _levels(as_photos(check), preparation)
    levels = torch.cat([_random_levels(preparation.size), photos])
    difference = _difference(_session(runtime, written), classifier, method, levels)
    write_bytes(path, written)
    return ExportInfo(path, len(written), opset, difference, len(photos), metadata)


class _Graph(nn.Module):
    """The module to trace. No branch depends on a value: prompts and names are indexed."""

    mean: Tensor
    std: Tensor
    name_of: Tensor

    def __init__(self, classifier: ContinualClassifier, method: Method) -> None:
        super().__init__()
        self.method = method
        self.backbone = method.backbone  # not a child of the method, so added here
        self.names = len(classifier.classes_)
        self.temperature = classifier.temperature_
        preparation = classifier.preparation_
        self.register_buffer("mean", torch.tensor(preparation.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(preparation.std).view(3, 1, 1))
        self.register_buffer("name_of", torch.tensor(classifier.name_of_))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The outputs, in the order of `_OUTPUTS`."""
        response = self.method.respond((pixels - self.mean) / self.std)
        logits, task = response.logits, response.task
        by_name = self._by_name(logits / self.temperature).softmax(1)
        none = torch.zeros(logits.shape[0], dtype=torch.long)
        familiar = by_name.amax(1) if response.familiar is None else response.familiar
        return by_name, none if task is None else task + 1, logits, familiar

    def _by_name(self, logits: Tensor) -> Tensor:
        """The best logit of each name (batch, names)."""
        if self.names == logits.shape[1]:  # one position per name: only the order changes
            return logits[:, self.name_of.argsort()]
        owners = self.name_of.expand(logits.shape[0], -1)
        lowest = logits.new_full((logits.shape[0], self.names), -torch.inf)
        return lowest.scatter_reduce(1, owners, logits, "amax")


def _modules() -> tuple[ModuleType, ModuleType]:
    """onnx and onnxruntime; onnxscript, which torch uses, must be installed as well."""
    try:
        import onnx
        import onnx.checker
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"exporting needs {error.name}, which is not installed",
            hint="pip install 'cprompt[export]'",
        ) from error
    return onnx, onnxruntime


def _plain_copy(method: Method) -> Method:
    """A copy of the method and its backbone in float32 on the CPU, not compiled."""
    method = copy.deepcopy(method).requires_grad_(False).cpu().eval()
    for module in (method.backbone.cpu(), *method.modules()):
        if isinstance(module, PromptableViT):
            module.decompile()
    return method


def _traced(graph: _Graph, side: int, opset: int) -> Any:
    """The graph as an onnx.ModelProto, without information about this machine."""
    example = torch.zeros(2, 3, side, side)
    batch = torch.export.Dim(_BATCH)
    try:
        with torch.no_grad(), _quietly():
            # Strict: Python's `len` of a tensor would otherwise make the batch a constant.
            program = torch.onnx.export(
                torch.export.export(graph, (example,), dynamic_shapes=({0: batch},), strict=True),
                dynamo=True,
                input_names=[_INPUT],
                output_names=_OUTPUTS,
                opset_version=opset,
                verbose=False,
            )
    except Exception as error:  # tracing can raise almost anything
        what = str(error).strip().partition("\n")[0][:200]
        raise ModelError(
            f"{graph.method.name} on {graph.backbone.name} cannot be turned into an ONNX graph "
            f"({type(error).__name__}: {what})"
        ) from error
    assert program is not None
    _check_size(tensor.const_value for tensor in program.model.graph.initializers.values())
    proto = program.model_proto
    (version,) = (known.version for known in proto.opset_import if known.domain == "")
    if version != opset:
        raise ConfigError(
            f"torch {torch.__version__} does not support opset {opset}", hint=f"try {version}"
        )
    proto.producer_name, proto.producer_version = "cprompt", __version__
    _strip(proto)
    return proto


def _check_size(tensors: Iterable[Any]) -> None:
    size = sum(tensor.nbytes for tensor in tensors)
    if size > LARGEST:
        raise ModelError(
            f"the model has {size / 2**30:.1f} GiB of tensors, but one ONNX file holds 2 GiB",
            hint="learn on a smaller backbone",
        )


def _strip(proto: Any) -> None:
    """Remove the exporter's notes on source files, and name the dynamic dimension."""
    graph = proto.graph
    del graph.value_info[:]
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = _BATCH


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence the warnings and logs of the exporters."""
    loggers = [logging.getLogger(name) for name in _NOISY]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _metadata(classifier: ContinualClassifier) -> dict[str, str]:
    """The file's metadata: what is needed besides the graph to answer, and its origin."""
    preparation, backbone = classifier.preparation_, classifier.method_.backbone
    return {
        "class_names": json.dumps(classifier.classes_, ensure_ascii=False),
        "input_size": str(preparation.size),
        "preprocessing": json.dumps(_preprocessing(preparation)),
        "normalization": json.dumps({"mean": preparation.mean, "std": preparation.std}),
        "temperature": repr(classifier.temperature_),
        "threshold": repr(classifier.threshold_),
        "unknown": UNKNOWN,
        "method": classifier.method,
        "batches": str(len(classifier.history_)),
        "model": classifier.model_id,
        "backbone": backbone.name,
        "backbone_fingerprint": backbone.fingerprint,
        "cprompt_version": __version__,
    }


def _preprocessing(preparation: Preparation) -> dict[str, Any]:
    """How a photo becomes `pixels`; docs/export.md shows it as code."""
    size = preparation.size
    (view,) = preparation.test_views(np.array([[size, size]], dtype=np.int64))
    return {
        "shrink_above": DETAIL * size,
        "resize": "square" if preparation.recipe.squeeze else "short_side",
        "resize_to": int(view.resized[0, 0]),
        "crop": size,
        "filter": "bilinear",
        "color": "RGB",
        "layout": "NCHW",
        "range": [0, 1],
    }


# --- comparison ---------------------------------------------------------------------------------


def _session(runtime: ModuleType, model: bytes) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base of their own
        raise ModelError(
            f"onnxruntime {runtime.__version__} does not accept the graph ({error})",
            hint="try another opset, or a newer onnxruntime",
        ) from error


def _random_levels(size: int) -> Tensor:
    """Images of noise, uint8 (n, size, size, 3), the same in every call."""
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (_IMAGES, size, size, 3), generator=rng, dtype=torch.uint8)


def _levels(photos: Sequence[PhotoLike], preparation: Preparation) -> Tensor:
    """The test views of photos: uint8 (n, size, size, 3)."""
    size = preparation.size
    images = decode(photos, size)
    views = [torch.zeros(0, size, size, 3, dtype=torch.uint8)]
    for i in range(len(images)):
        shape = np.array([images[i].shape[:2]], dtype=np.int64)
        view = apply_views(images[i], preparation.test_views(shape), 0)
        views.append(torch.from_numpy(view[None].copy()))
    return torch.cat(views)


@torch.no_grad()
def _difference(
    session: Any, classifier: ContinualClassifier, method: Method, levels: Tensor
) -> float:
    """The largest difference over `levels` (n, S, S, 3); the first image is a batch of its own.

    `method` is a copy of the classifier's. Its inputs are normalised and its answers calibrated
    by the code that predictions use, not by the graph's.
    """
    normalize = classifier.preparation_.normalizer(torch.device("cpu"))
    name_of = np.array(classifier.name_of_, dtype=np.int64)
    largest, elsewhere = 0.0, 0
    for part in (levels[:1], *torch.split(levels[1:], 32)):
        pixels = (part.permute(0, 3, 1, 2).float() / 255).numpy()
        probabilities, prompt, logits, familiar = session.run(_OUTPUTS, {_INPUT: pixels})
        images = normalize(part)
        response = method.respond(images)
        ours = response.logits.numpy()
        expected = calibration.name_probabilities(
            ours, name_of, len(classifier.classes_), classifier.temperature_
        )
        scale = max(1.0, float(np.abs(ours).max()))
        sure = expected.max(axis=1)
        if response.familiar is not None:
            sure = response.familiar.numpy()
        apart = (
            np.abs(expected - probabilities).max(),
            np.abs(ours - logits).max() / scale,
            np.abs(sure - familiar).max(),
        )
        largest = float(np.max([largest, *apart]))  # unlike Python's max, it returns any NaN
        if response.task is not None:
            elsewhere += int((response.task.numpy() + 1 != prompt).sum())
    if elsewhere:
        raise ModelError(
            f"the ONNX graph selects another prompt for {elsewhere} of {len(levels)} images; "
            "nothing was written"
        )
    if not largest <= TOLERANCE:
        raise ModelError(
            f"the ONNX graph's answers differ from the classifier's by {largest:.2g}, more than "
            f"{TOLERANCE:g}; nothing was written"
        )
    return largest
