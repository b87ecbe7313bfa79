"""A classifier as one ONNX graph: pixels in, probabilities out, selection and prompts inside.

The graph is traced from the method itself by torch.export, so that there is no second
implementation. Nothing is given its name before onnxruntime has answered images with it and
agreed with the classifier.
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
from cprompt.files import write_bytes
from cprompt.methods.base import Method
from cprompt.vit.promptable import PromptableViT

OPSET = 18
"""Operators of the graph unless told otherwise: the oldest set that torch exports to, which
onnxruntime knows since 1.14."""

TOLERANCE = 1e-4
"""Largest difference between the graph and the classifier: of probabilities as they are, of
logits in parts of the largest one, if that is above 1."""

LARGEST = 2**31 - 2**20
"""Bytes of tensors that fit into one file: protobuf ends at 2 GiB, and the graph needs some."""

_INPUT, _OUTPUTS = "pixels", ("probabilities", "prompt", "logits")
_BATCH = "batch"
_IMAGES = 9
_NOISY = ("torch.onnx", "torch.export", "onnxscript", "onnx_ir")


@dataclass(frozen=True)
class ExportInfo:
    """What was written, and how well it agrees."""

    path: Path
    bytes: int
    opset: int
    difference: float
    """Largest one found between the graph's answers and the classifier's; see `TOLERANCE`."""
    checked: int
    """Photos that were given to check with; some random images come on top."""
    metadata: dict[str, str]
    """What the file says of itself; docs/export.md lists it."""


def export_onnx(
    classifier: ContinualClassifier, path: str | Path, *, opset: int = OPSET, check: Any = ()
) -> ExportInfo:
    """Write the classifier to `path` as one ONNX file, once the file is known to agree with it.

    Input `pixels`, float32 (batch, 3, S, S): RGB in [0, 1], resized and cropped as the file's
    metadata says, not normalised. Outputs `probabilities`, float32 (batch, names), calibrated, in
    the order of `classes_`; `prompt`, int64 (batch,), the number of the batch, from 1, whose
    prompt answered, 0 where the method picks none; `logits`, float32 (batch, positions), before
    calibration. All is float32 on the CPU, whatever device and precision the classifier has.

    Random images and those in `check`, one or many as `predict` takes them, are answered by
    both; a difference is an error, and then `path` stays as it was.
    """
    path = Path(path)
    onnx, runtime = _modules()
    _check_place(path)
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
    """What is traced. No branch depends on a value: prompts and names are looked up by index."""

    mean: Tensor
    std: Tensor
    name_of: Tensor

    def __init__(self, classifier: ContinualClassifier, method: Method) -> None:
        super().__init__()
        self.method = method
        self.backbone = method.backbone  # no child of the method, but one of the graph
        self.names = len(classifier.classes_)
        self.temperature = classifier.temperature_
        preparation = classifier.preparation_
        self.register_buffer("mean", torch.tensor(preparation.mean).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(preparation.std).view(3, 1, 1))
        self.register_buffer("name_of", torch.tensor(classifier.name_of_))

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The three outputs, in the order of `_OUTPUTS`."""
        response = self.method.respond((pixels - self.mean) / self.std)
        logits, task = response.logits, response.task
        by_position = (logits / self.temperature).softmax(1)
        owners = self.name_of.expand(logits.shape[0], -1)
        by_name = logits.new_zeros(logits.shape[0], self.names).scatter_add(1, owners, by_position)
        none = torch.zeros(logits.shape[0], dtype=torch.long)
        return by_name, none if task is None else task + 1, logits


def _modules() -> tuple[ModuleType, ModuleType]:
    """onnx and onnxruntime; onnxscript, which torch calls, has to be there as well."""
    try:
        import onnx
        import onnx.checker
        import onnxruntime
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"exporting needs {error.name}; install it with `pip install 'cprompt[export]'`"
        ) from error
    return onnx, onnxruntime


def _check_place(path: Path) -> None:
    """Tracing a large model takes minutes; what is wrong with a path can be said before."""
    if path.is_dir():
        raise ConfigError(f"{path} is a folder; name a file, such as {path / 'model.onnx'}")
    if not path.parent.is_dir():
        raise ConfigError(
            f"{path} cannot be written: {path.parent} is no folder; make it, or choose another"
        )


def _plain_copy(method: Method) -> Method:
    """The method and its backbone in float32 on the CPU, run as they are written."""
    method = copy.deepcopy(method).requires_grad_(False).cpu().eval()
    for module in (method.backbone.cpu(), *method.modules()):
        if isinstance(module, PromptableViT):
            module.decompile()
    return method


def _traced(graph: _Graph, side: int, opset: int) -> Any:
    """The graph as an onnx.ModelProto that says nothing of the machine it was made on."""
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
    except Exception as error:  # tracing meets what it does not know with almost any exception
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
        raise ConfigError(f"opset {opset} is not known to torch {torch.__version__}; try {version}")
    proto.producer_name, proto.producer_version = "cprompt", __version__
    _strip(proto)
    return proto


def _check_size(tensors: Iterable[Any]) -> None:
    size = sum(tensor.nbytes for tensor in tensors)
    if size > LARGEST:
        raise ModelError(
            f"the model has {size / 2**30:.1f} GiB of tensors, but one ONNX file holds 2 GiB; "
            "learn on a smaller backbone"
        )


def _strip(proto: Any) -> None:
    """Drop what the exporter notes of source files, and name the dimension that is not fixed."""
    graph = proto.graph
    del graph.value_info[:]
    for part in (proto, graph, *graph.node, *graph.input, *graph.output, *graph.initializer):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = _BATCH


@contextmanager
def _quietly() -> Iterator[None]:
    """The exporters talk of their own affairs, in warnings and in logs."""
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
    """What the file says of itself: all that an answer needs beside the graph, and its origin."""
    preparation, backbone = classifier.preparation_, classifier.method_.backbone
    return {
        "class_names": json.dumps(classifier.classes_, ensure_ascii=False),
        "input_size": str(preparation.size),
        "preprocessing": json.dumps(_preprocessing(preparation)),
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
    """How a photo becomes `pixels`, in numbers; docs/export.md has it as code."""
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


# --- does it agree? -----------------------------------------------------------------------------


def _session(runtime: ModuleType, model: bytes) -> Any:
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # errors
    try:
        return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # its exceptions have no common base of their own
        raise ModelError(
            f"onnxruntime {runtime.__version__} does not take the graph ({error}); "
            "try another opset, or a newer onnxruntime"
        ) from error


def _random_levels(size: int) -> Tensor:
    """Some images of noise, uint8 (n, size, size, 3), the same ones every time."""
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
    """The largest one over `levels` (n, S, S, 3), of which the first is answered alone.

    What `method`, a copy of the classifier's, says is normalised and calibrated as for any
    prediction: by other code than the graph's.
    """
    normalize = classifier.preparation_.normalizer(torch.device("cpu"))
    name_of = np.array(classifier.name_of_, dtype=np.int64)
    largest, elsewhere = 0.0, 0
    for part in (levels[:1], *torch.split(levels[1:], 32)):
        pixels = (part.permute(0, 3, 1, 2).float() / 255).numpy()
        probabilities, prompt, logits = session.run(_OUTPUTS, {_INPUT: pixels})
        images = normalize(part)
        response = method.respond(images)
        ours = response.logits.numpy()
        expected = calibration.name_probabilities(
            ours, name_of, len(classifier.classes_), classifier.temperature_
        )
        scale = max(1.0, float(np.abs(ours).max()))
        apart = np.abs(expected - probabilities).max(), np.abs(ours - logits).max() / scale
        largest = float(np.max([largest, *apart]))  # unlike Python's, it lets no NaN pass
        if response.task is not None:
            elsewhere += int((response.task.numpy() + 1 != prompt).sum())
    if elsewhere:
        raise ModelError(
            f"the ONNX graph picks another prompt for {elsewhere} of {len(levels)} images; "
            "nothing was written"
        )
    if not largest <= TOLERANCE:
        raise ModelError(
            f"the ONNX graph's answers differ from the classifier's by {largest:.2g}, more than "
            f"{TOLERANCE:g}; nothing was written"
        )
    return largest
