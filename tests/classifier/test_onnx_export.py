"""Exported graphs, run by onnxruntime, against the classifier itself."""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor
from typer.testing import CliRunner

import cprompt.cli.export  # noqa: F401  registers the command
from cprompt import ContinualClassifier, ModelError, __version__
from cprompt.classifier import onnx_export
from cprompt.classifier.onnx_export import ExportInfo, export_onnx
from cprompt.cli import app
from cprompt.data.datasets import shapes
from cprompt.errors import CheckpointError, ConfigError
from cprompt.methods.finetune import FineTune
from cprompt.vit.promptable import FrozenViT

SIDE = 32
ROOT = Path(__file__).parents[2]
METHODS: dict[str, dict[str, Any]] = {
    "strata": {"method": "strata", "settings": {"width": 60, "views": 1}},
    "cprompt": {"method": "cprompt", "settings": {"length": 2}},
    "finetune": {"method": "finetune", "settings": {"length": 2}},
    "l2p": {"method": "l2p", "settings": {"length": 2, "top_n": 2}},
    "lda": {"method": "lda"},
    "nearest_mean": {"method": "nearest_mean"},
    "ranpac": {"method": "ranpac", "settings": {"projections": 40}},
}


def two_blocks(*_: Any) -> FrozenViT:
    """A ViT of two blocks, since tracing takes its time for each.

    Its random weights are large enough for different images to have different features.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = VisionTransformer(SIDE, 8, embed_dim=24, depth=2, num_heads=3, num_classes=0)
    for weight in vit.parameters():
        if weight.dim() > 1:
            weight.data *= 8
    return FrozenViT(vit, "two_blocks", "random:0")


@pytest.fixture(scope="module", autouse=True)
def _small_backbone() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cprompt.classifier.classifier.load_backbone", two_blocks)
        yield


def noise(name: str, count: int, seed: int = 0) -> list[NDArray[np.uint8]]:
    """Images of a colour and a grain that the name stands for."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    colour = np.random.default_rng(zlib.crc32(name.encode())).integers(40, 216, 3)
    return list(rng.normal(colour, 30, (count, SIDE, SIDE, 3)).clip(0, 255).astype(np.uint8))


def learnt(*batches: dict[str, int], **params: Any) -> ContinualClassifier:
    usual: dict[str, Any] = {
        "weights": "random:0",
        "training": {"epochs": 2, "batch_size": 8},
        "transform": "plain",
        "device": "cpu",
    }
    classifier = ContinualClassifier("two_blocks", **{**usual, **params})
    for seed, counts in enumerate(batches):
        images = [p for name, n in counts.items() for p in noise(name, n, seed)]
        classifier.learn(images, [name for name, n in counts.items() for _ in range(n)])
    return classifier


BATCHES = ({"red": 8, "Ära": 9}, {"moss": 7}, {"sun": 6, "red": 8, "猫": 6})


@functools.cache  # an export takes seconds
def exported(kind: str, folder: Path) -> tuple[ContinualClassifier, ExportInfo]:
    """A model of three batches, in the last of which a class returns, and its file."""
    classifier = learnt(*BATCHES, **METHODS[kind])
    return classifier, export_onnx(classifier, folder / f"{kind}.onnx")


def use_graph_of(info: ExportInfo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exports take this graph instead of tracing another."""
    monkeypatch.setattr(onnx_export, "_traced", lambda *_: onnx.load(info.path))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


def session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])


@functools.cache
def five_hundred() -> NDArray[np.uint8]:
    """Half noise, half drawn."""
    rng = np.random.default_rng(0)
    drawn = [shapes.draw_image(shapes.CLASSES[i % 30], "test", i, size=SIDE) for i in range(250)]
    return np.concatenate([rng.integers(0, 256, (250, SIDE, SIDE, 3), np.uint8), np.stack(drawn)])


def as_input(images: NDArray[np.uint8]) -> NDArray[np.float32]:
    return (images.transpose(0, 3, 1, 2) / 255).astype(np.float32)


@pytest.mark.parametrize("kind", METHODS)
def test_answers_are_the_classifiers_for_any_size_of_batch(kind: str, folder: Path) -> None:
    classifier, info = exported(kind, folder)
    images = five_hundred()
    expected = classifier.predict_proba(list(images))
    assert np.bincount(expected.argmax(1)).max() < 400
    explained = classifier.explain(list(images), top=1)
    prompts = [0 if each.prompt is None else each.prompt for each in explained]
    assert set(prompts) == ({1, 2, 3} if classifier.method_.selects_task else {0})
    run = session(info.path)
    for size in (1, 7, 64):
        parts = [
            run.run(None, {"pixels": as_input(images[at : at + size])})
            for at in range(0, len(images), size)
        ]
        probabilities, prompt, logits, familiar = (
            np.concatenate(part) for part in zip(*parts, strict=True)
        )
        assert probabilities.shape == (500, 5)
        assert np.abs(probabilities - expected).max() < 1e-4
        assert (probabilities.argmax(1) == expected.argmax(1)).all()
        assert prompt.tolist() == prompts
        scores = np.array([each.score for each in explained])
        assert np.abs(logits.max(1) - scores).max() < 1e-5 * max(1, np.abs(scores).max())
        expected_familiar = np.array([each.familiarity for each in explained])
        assert np.abs(familiar - expected_familiar).max() < 1e-4
    assert info.difference < 1e-4


def test_the_best_of_its_positions_speaks_for_a_name(folder: Path) -> None:
    classifier, info = exported("cprompt", folder)
    feed = {"pixels": as_input(five_hundred()[:9])}
    probabilities, logits = session(info.path).run(["probabilities", "logits"], feed)
    assert logits.shape == (9, 6)  # red has two positions, 0 and 4
    best = np.maximum(logits[:, 0], logits[:, 4])
    by_hand = np.column_stack([best, logits[:, 1:4], logits[:, 5]]).astype(np.float64)
    by_hand = np.exp(by_hand / classifier.temperature_)
    by_hand /= by_hand.sum(1, keepdims=True)
    assert classifier.temperature_ != 1
    np.testing.assert_allclose(probabilities, by_hand, atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-6)


def test_the_file_says_what_it_is(folder: Path) -> None:
    classifier, info = exported("strata", folder)
    run = session(info.path)
    about = run.get_modelmeta().custom_metadata_map
    assert about == info.metadata
    assert json.loads(about["class_names"]) == ["red", "Ära", "moss", "sun", "猫"]
    assert about["input_size"] == "32"
    assert float(about["temperature"]) == classifier.temperature_
    assert float(about["threshold"]) == classifier.threshold_ > 0
    assert about["model"] == classifier.model_id
    assert (about["method"], about["batches"], about["unknown"]) == ("strata", "3", "unknown")
    assert about["backbone"] == "two_blocks"
    assert about["backbone_fingerprint"] == two_blocks().fingerprint
    assert about["cprompt_version"] == __version__
    (pixels,) = run.get_inputs()
    assert (pixels.name, pixels.type) == ("pixels", "tensor(float)")
    assert pixels.shape == ["batch", 3, 32, 32]
    assert [(o.name, o.type, o.shape) for o in run.get_outputs()] == [
        ("probabilities", "tensor(float)", ["batch", 5]),
        ("prompt", "tensor(int64)", ["batch"]),
        ("logits", "tensor(float)", ["batch", 5]),
        ("familiarity", "tensor(float)", ["batch"]),
    ]


@pytest.mark.parametrize(
    ("transform", "resize", "to"), [("photo", "short_side", 37), ("drawn", "square", 32)]
)
def test_the_recipe_for_pixels_follows_the_transform(transform: str, resize: str, to: int) -> None:
    preparation = learnt({"a": 2, "b": 2}, transform=transform).preparation_
    recipe = onnx_export._preprocessing(preparation)
    assert (recipe["resize"], recipe["resize_to"], recipe["crop"]) == (resize, to, 32)
    assert recipe["shrink_above"] == 64


def test_one_whole_file_is_written_that_names_no_path_of_the_machine(folder: Path) -> None:
    _, info = exported("strata", folder)
    assert all(file.suffix == ".onnx" for file in folder.iterdir())
    written = info.path.read_bytes()
    assert len(written) == info.bytes
    for trace in (str(ROOT), "site-packages", ".py", "stack_trace"):
        assert trace.encode() not in written
    proto = onnx.load(info.path)
    onnx.checker.check_model(proto, full_check=True)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 18)]
    assert (proto.producer_name, info.opset) == ("cprompt", 18)
    weights = sum(t.numel() * t.element_size() for t in two_blocks().parameters())
    assert weights < info.bytes < 2.5 * weights


def test_the_same_photos_learnt_twice_in_bf16_and_in_another_opset(tmp_path: Path) -> None:
    """Keys of the same photos are equal, so both sides have to break the tie alike.

    The classifier is used in bf16 and stays as it was; the graph computes in float32.
    """
    photos, names = [*noise("red", 3), *noise("sea", 3)], ["red"] * 3 + ["sea"] * 3
    classifier = learnt(**METHODS["cprompt"]).learn(photos, names).learn(photos, names)
    classifier.set_params(precision="bf16")
    before = classifier.predict_proba(photos)
    trainable = [p.requires_grad for p in classifier.method_.parameters()]
    path = tmp_path / "new" / "it.onnx"  # whose folder is made
    info = export_onnx(classifier, path, opset=20, check=photos)
    assert info.checked == 6
    assert info.difference < 1e-4
    assert onnx.load(path).opset_import[0].version == 20
    assert [p.requires_grad for p in classifier.method_.parameters()] == trainable
    np.testing.assert_array_equal(classifier.predict_proba(photos), before)


def test_a_graph_that_answers_otherwise_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, info = exported("finetune", folder)
    graph = onnx.load(info.path)
    for tensor in graph.graph.initializer:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            values = onnx.numpy_helper.to_array(tensor)
            tensor.CopyFrom(onnx.numpy_helper.from_array(1.01 * values, tensor.name))
    monkeypatch.setattr(onnx_export, "_traced", lambda *_: graph)
    with pytest.raises(ModelError, match=r"differ from the classifier's by 0\.\d+, more than 0"):
        export_onnx(classifier, tmp_path / "it.onnx")
    assert not list(tmp_path.iterdir())


def test_a_method_that_cannot_be_traced_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier = learnt({"red": 4, "sea": 4}, **METHODS["finetune"])
    answer = FineTune.answer

    def branching(self: FineTune, feature: Tensor) -> Tensor:
        logits = answer(self, feature)
        return logits if logits.sum() > 0 else -logits

    monkeypatch.setattr(FineTune, "answer", branching)
    with pytest.raises(ModelError, match="finetune on two_blocks cannot be turned into an ONNX"):
        export_onnx(classifier, tmp_path / "it.onnx")
    assert not list(tmp_path.iterdir())


def test_more_than_a_file_can_hold_is_refused() -> None:
    gib = torch.empty(2**28, device="meta")
    onnx_export._check_size([gib])
    with pytest.raises(ModelError, match=r"2\.0 GiB of tensors, but one ONNX file holds 2 GiB"):
        onnx_export._check_size([gib, gib])


@pytest.mark.parametrize("module", ["onnx", "onnxruntime", "onnxscript"])
def test_without_its_packages_the_error_says_what_to_install(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=f"needs {module}") as caught:
        export_onnx(learnt(), tmp_path / "it.onnx")
    assert "cprompt[export]" in str(caught.value.hint)


def test_what_cannot_be_exported_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing was learnt yet"):
        export_onnx(learnt(), tmp_path / "it.onnx")
    classifier = learnt({"a": 2, "b": 2})
    with pytest.raises(ConfigError, match="is a folder") as caught:
        export_onnx(classifier, tmp_path)
    assert caught.value.file == str(tmp_path)
    for opset in (17, 1000):
        with pytest.raises(ConfigError, match=rf"opset {opset} must be from 18 to \d+"):
            export_onnx(classifier, tmp_path / "it.onnx", opset=opset)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_the_file_before(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    classifier, info = exported("finetune", folder)
    use_graph_of(info, monkeypatch)
    path = tmp_path / "it.onnx"
    path.write_bytes(b"the one before")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("cprompt.files.os.fsync", full)
    with pytest.raises(CheckpointError, match=r"it\.onnx: cannot be written \(No space left"):
        export_onnx(classifier, path)
    assert path.read_bytes() == b"the one before"


def test_the_command_and_the_code_in_the_docs_answer_as_the_classifier(
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    classifier, info = exported("strata", folder)
    use_graph_of(info, monkeypatch)
    monkeypatch.setattr(classifier, "transform", "photo")  # its views are not part of the graph
    classifier.save("model")
    (scene,) = noise("sea", 1, seed=9)
    for name, size in (("photo", (203, 131)), ("small", (41, 50))):
        Image.fromarray(scene).resize(size).save(f"{name}.jpg")
    command = ["export", "model", "--onnx", "flowers.onnx", "--check", ".", "--check", "photo.jpg"]
    said = CliRunner().invoke(app, command, catch_exceptions=False).stdout
    assert re.search(r"flowers\.onnx: [\d.]+ MiB, 5 classes, images of 32×32 pixels", said)
    assert re.search(r"agrees to \S+ on random images and 3 photos", said)

    page = (ROOT / "docs/export.md").read_text("utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert "cprompt" not in code
    space: dict[str, Any] = {}
    exec(compile(code, "docs/export.md", "exec"), space)
    (explained,) = classifier.explain(["photo.jpg"])
    assert capsys.readouterr().out.endswith(f"{explained.label} {explained.probability:.0%}\n")
    photos = np.stack([space["pixels"](f"{name}.jpg") for name in ("photo", "small")])
    (answers,) = space["session"].run(["probabilities"], {"pixels": photos})
    expected = classifier.predict_proba(["photo.jpg", "small.jpg"])
    np.testing.assert_allclose(answers, expected, atol=1e-4)
