"""Pre-train the small embedded backbone on Tiny-ImageNet, taught by a larger ViT.

    python tools/pretrain_backbone.py SHARDS TEACHER OUT --state DIR --minutes 10 --compile
    python tools/pretrain_backbone.py SHARDS TEACHER OUT --state DIR --minutes 10 --compile --resume

SHARDS holds what pack_tiny_imagenet.py wrote; TEACHER is a safetensors file of timm's
`vit_tiny_patch16_224` with its ImageNet-1k head, trained on inputs in [-1, 1]. In this order:

1. The images are decoded once and stay on the device.
2. The teacher, which knows sharp images, is tuned on 64-pixel ones for --tuning-seconds. Only
   its logits of the 200 classes enter that loss, so the other 800 go on saying what else an image
   resembles.
3. It labels a fixed set of augmented views of every training image.
4. The student learns from mixed views: its 200-way head from the labels and the teacher, a
   1000-way head, dropped at the end, from the teacher alone.

Learning rates follow the seconds spent in steps 2 and 4, not a number of steps, so a slower
machine trains less but still anneals to the end. With --stop-after the state is saved and the
exit status is 3; --resume goes on from there with fresh views. Validation accuracy is reported and
chooses nothing. OUT receives training.json and backbone.safetensors: fp16, timm's names, the moving
average of the weights; its metadata entry `architecture` holds VisionTransformer's arguments.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import io
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import timm
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from timm.data import ImageNetInfo
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

RECIPE = {
    "crop_area": 0.35,  # smallest share of an image that a view shows
    "crop_ratio": 4 / 3,  # largest width over height, and height over width
    "jitter": 0.3,  # largest relative change of brightness, contrast and saturation
    "grey": 0.05,  # share of the views without colour
    "cutmix": 0.4,  # share of the images, as for mixup; both fall to 0 after mix_until
    "mixup": 0.4,
    "mix_until": 0.85,
    "teacher_weight": 1.0,  # of the 1000-way loss
    "label_weight": 0.5,  # of the 200-way loss
    "teacher_share": 0.5,  # of the 200-way target; the rest is the label
    "label_smoothing": 0.1,
    "temperature": 1.0,
    "rate": 1.5e-3,  # for batches of 1024; scaled in proportion
    "weight_decay": 0.05,
    "clip": 1.0,
    "warm_up": 0.03,  # share of the schedule
    "floor": 0.005,  # last learning rate relative to the highest
    "drop_path": 0.05,
    "ema_window": 0.03,  # the weights are averaged over this last share of the steps …
    "ema_decay": 0.9998,  # … but over 5,000 steps at most
    "tuning_rate": 1e-4,
    "tuning_batch": 500,
    "tuning_mix": 0.6,  # strength of CutMix and mixup then, relative to the student's
}
SIDE, TEACHER_SIDE = 64, 224
ARCHITECTURE: dict[str, object] = {
    "img_size": SIDE,
    "patch_size": 8,
    "num_classes": 200,
    "embed_dim": 192,
    "depth": 9,
    "num_heads": 3,
    "mlp_ratio": 2.0,
    "qkv_bias": True,
    "class_token": True,
    "global_pool": "token",
}
BLOCK = 20  # steps between two looks at the clock
CHUNK = 2000  # images per teacher pass
SAVE_EVERY = 60.0  # seconds
SIZE_LIMIT = 12_000_000  # bytes of the fp16 weights


@dataclass
class Progress:
    """What a resumed run has to know besides the tensors; seconds count training alone."""

    steps: int = 0
    seconds: float = 0.0
    views: int = 0
    curve: list[dict[str, float]] = field(default_factory=list)
    facts: dict[str, float] = field(default_factory=dict)


@dataclass
class Pictures:
    """uint8 images (n, 3, 64, 64) and their int64 labels (n,)."""

    pixels: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> Pictures:
        return Pictures(self.pixels.to(device), self.labels.to(device))


def decode(files: list[bytes]) -> NDArray[np.uint8]:
    """Decode JPEGs into uint8 (n, 3, 64, 64); grey-scale ones become RGB."""
    rgb = [np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files]
    return np.ascontiguousarray(np.stack(rgb).transpose(0, 3, 1, 2))


def load_shards(folder: Path, limit: int | None) -> tuple[Pictures, Pictures, list[str]]:
    """Read the training and validation images and the class names.

    The workers are forked: call this before anything touches the GPU.
    """
    paths = sorted(folder.glob("shard*.npz"))
    if not paths:
        raise SystemExit(f"{folder} holds no shard*.npz: write them with pack_tiny_imagenet.py")
    files, splits, labels, classes = [], [], [], []
    for path in paths:
        with np.load(path) as shard:
            jpeg, ends = shard["jpeg"].tobytes(), shard["offsets"].tolist()
            files += [jpeg[a:b] for a, b in pairwise(ends)]
            splits.append(shard["split"])
            labels.append(shard["label"])
            classes = shard["classes"].tolist()
    split, label = np.concatenate(splits), np.concatenate(labels).astype(np.int64)
    found = []
    with get_context("fork").Pool(os.cpu_count()) as pool:
        for wanted in (0, 1):
            chosen = np.random.default_rng(0).permutation(np.flatnonzero(split == wanted))[:limit]
            chunks = [[files[i] for i in chosen[k : k + 500]] for k in range(0, len(chosen), 500)]
            pixels = np.concatenate(pool.map(decode, chunks, chunksize=1))
            found.append(Pictures(torch.from_numpy(pixels), torch.from_numpy(label[chosen])))
    return found[0], found[1], classes


def resize_matrix(start: Tensor, size: Tensor, out: int) -> Tensor:
    """Antialiased bicubic weights (B, out, 64) that resize pixels [start, start + size) to `out`.

    The kernel is cut off at the crop's edges and renormalised, as in torchvision's resized_crop.
    """
    start, scale = start[:, None, None], (size / out)[:, None, None]
    here = torch.arange(SIDE, device=start.device)
    centre = start + (torch.arange(out, device=start.device) + 0.5)[:, None] * scale
    x = ((here + 0.5 - centre) / scale.clamp(min=1)).abs()
    near, far = (1.5 * x - 2.5) * x**2 + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    weight = torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
    weight = weight * ((here >= start) & (here < start + size[:, None, None]))
    return weight / weight.sum(dim=-1, keepdim=True)


def resize(pixels: Tensor, x: Tensor, y: Tensor, w: Tensor, h: Tensor, out: int) -> Tensor:
    """Cut box i (in pixels) out of image i and resize it to out × out; float, 0 to 255."""
    rows, columns = resize_matrix(y, h, out), resize_matrix(x, w, out)
    return (rows[:, None] @ pixels.float() @ columns[:, None].mT).clamp(0, 255)


def augment(pixels: Tensor, generator: torch.Generator) -> Tensor:
    """Randomly crop, flip, re-light and re-colour each image; uint8, like the input."""
    u = torch.rand(9, len(pixels), device=pixels.device, generator=generator)
    area = SIDE**2 * (RECIPE["crop_area"] + u[0] * (1 - RECIPE["crop_area"]))
    ratio = (math.log(RECIPE["crop_ratio"]) * (2 * u[1] - 1)).exp()
    w = (area * ratio).sqrt().round().clamp(1, SIDE)
    h = (area / ratio).sqrt().round().clamp(1, SIDE)
    x, y = (u[2] * (SIDE - w + 1)).floor(), (u[3] * (SIDE - h + 1)).floor()
    u = u[:, :, None, None, None]
    light, contrast, colour = 1 + RECIPE["jitter"] * (2 * u[4:7] - 1)
    colour = torch.where(u[7] < RECIPE["grey"], 0.0, colour)
    luma = torch.tensor([0.299, 0.587, 0.114], device=pixels.device)[:, None, None]
    view = light * resize(pixels, x, y, w, h, SIDE)
    mean = (view * luma).sum(1, keepdim=True).mean((2, 3), keepdim=True)
    view = mean + contrast * (view - mean)
    grey = (view * luma).sum(1, keepdim=True)
    view = grey + colour * (view - grey)
    view = torch.where(u[8] < 0.5, view.flip(-1), view)
    return view.clamp(0, 255).round().to(torch.uint8)


def draw_masks(n: int, strength: float, generator: torch.Generator) -> Tensor:
    """How much of each pixel is the image's own, (n, 1, 64, 64); its neighbour fills the rest.

    CutMix gives zeros in a box, mixup one number everywhere, and no mixing ones.
    """
    kind, share, x, y = torch.rand(4, n, 1, 1, 1, device=generator.device, generator=generator)
    here = torch.arange(SIDE, device=generator.device) + 0.5
    reach = (1 - share).sqrt() * SIDE / 2
    box = ((here - x * SIDE).abs() < reach) & ((here[:, None] - y * SIDE).abs() < reach)
    cutmix, either = strength * RECIPE["cutmix"], strength * (RECIPE["cutmix"] + RECIPE["mixup"])
    mask = torch.where(kind < cutmix, 1.0 - box.float(), share)
    return torch.where(kind < either, mask, 1.0)


def mixed(own: Tensor, share: Tensor) -> Tensor:
    """Blend each row with the row before it; `share` broadcasts and is the row's own part."""
    return share * own + (1 - share) * own.roll(1, 0)


def scheduled(progress: float) -> float:
    """Learning rate relative to its highest: linear warm-up, then half a cosine."""
    if progress < RECIPE["warm_up"]:
        return max(progress / RECIPE["warm_up"], 1e-3)
    turn = math.pi * min((progress - RECIPE["warm_up"]) / (1 - RECIPE["warm_up"]), 1.0)
    return RECIPE["floor"] + (1 - RECIPE["floor"]) * (1 + math.cos(turn)) / 2


def adamw(model: nn.Module) -> torch.optim.AdamW:
    """AdamW that does not decay biases, norms, the class token and the position embeddings."""
    parameters = dict(model.named_parameters())
    free = [n for n, p in parameters.items() if p.ndim < 2 or n.endswith(("pos_embed", "token"))]
    groups: list[dict[str, object]] = [
        {"params": [p for n, p in parameters.items() if n not in free]},
        {"params": [parameters[n] for n in free], "weight_decay": 0.0},
    ]
    fused = next(iter(parameters.values())).is_cuda
    return torch.optim.AdamW(groups, weight_decay=RECIPE["weight_decay"], fused=fused)


def descend(optimiser: torch.optim.Optimizer, loss: Tensor, rate: float) -> None:
    """One optimiser step at the given learning rate, with clipped gradients."""
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    for group in optimiser.param_groups:
        group["lr"] = rate
    nn.utils.clip_grad_norm_(
        [p for group in optimiser.param_groups for p in group["params"]], RECIPE["clip"]
    )
    optimiser.step()


def percent(logits: Tensor, labels: Tensor) -> float:
    """Top-1 accuracy, to two decimals."""
    return round(100 * (logits.argmax(1) == labels).float().mean().item(), 2)


@torch.no_grad()
def accuracy(vit: nn.Module, images: Pictures) -> float:
    """Top-1 of the 200-way head in percent, without autocast; the model's mode is restored."""
    was_training = vit.training
    vit.eval()
    logits = torch.cat([vit(part / 127.5 - 1) for part in torch.split(images.pixels, 1000)])
    vit.train(was_training)
    return percent(logits, images.labels)


def compiled(
    function: Callable[..., Tensor], wanted: bool, *example: object
) -> Callable[..., Tensor]:
    """Compile a function and try it, backward pass included; keep the plain one if that fails."""
    if not wanted:
        return function
    started = time.monotonic()
    fast: Callable[..., Tensor] = torch.compile(function, dynamic=False)
    try:
        result = fast(*example)
        if result.requires_grad:
            result.backward()  # type: ignore[no-untyped-call]
    except Exception as error:  # compilers fail in many ways, and none of them should end the run
        print(f"{function.__name__} does not compile, going on without: {error!r}"[:600])
        return function
    print(f"{function.__name__} compiled in {time.monotonic() - started:.0f} s")
    return fast


class Teacher:
    """The 1000-way teacher; `columns` gives each of the 200 classes its ImageNet-1k index."""

    def __init__(self, weights: Path, classes: list[str], device: torch.device) -> None:
        self.model = timm.create_model("vit_tiny_patch16_224").to(device)
        self.model.load_state_dict(load_file(weights))
        names = ImageNetInfo("imagenet-1k").label_names()
        if missing := sorted(set(classes) - set(names)):
            raise SystemExit(f"the teacher has no class {', '.join(missing)}: pack without them")
        self.columns = torch.tensor([names.index(name) for name in classes], device=device)
        self.device = device

    def logits(self, pixels: Tensor) -> Tensor:
        """1000 logits of images (B, 3, 64, 64) with values 0 to 255, shown at 224 pixels."""
        zero = torch.zeros(1, device=self.device)
        large = resize(pixels, zero, zero, zero + SIDE, zero + SIDE, TEACHER_SIDE) / 127.5 - 1
        with torch.autocast(self.device.type, torch.bfloat16):
            logits: Tensor = self.model(large)
        return logits.float()

    @torch.no_grad()
    def accuracy(self, images: Pictures) -> float:
        """Percent right, choosing among the 200 classes."""
        self.model.eval()
        logits = torch.cat([self.logits(part) for part in torch.split(images.pixels, 500)])
        return percent(logits[:, self.columns], images.labels)

    def tune(self, train: Pictures, seconds: float, seed: int) -> None:
        """Fit the logits of the 200 classes to 64-pixel images.

        Never compiled: that takes about as long as the whole of it.
        """
        generator = torch.Generator(self.device).manual_seed(seed)
        optimiser = adamw(self.model)
        batch = int(RECIPE["tuning_batch"])
        self.model.train()

        started, steps, spent, value = time.monotonic(), 0, 0.0, math.nan
        while spent < seconds:
            which = torch.randint(
                len(train.labels), (batch,), generator=generator, device=self.device
            )
            view = augment(train.pixels[which], generator)
            mask = draw_masks(batch, RECIPE["tuning_mix"], generator)
            hard = F.one_hot(train.labels[which], len(self.columns)).float()
            loss = F.cross_entropy(
                self.logits(mixed(view, mask))[:, self.columns],
                mixed(hard, mask.mean((1, 2, 3))[:, None]),
                label_smoothing=RECIPE["label_smoothing"],
            )
            descend(optimiser, loss, RECIPE["tuning_rate"] * scheduled(spent / seconds))
            value, steps = loss.item(), steps + 1
            spent = time.monotonic() - started
        seen = steps * batch
        print(
            f"teacher tuned for {seen / len(train.labels):.2f} epochs, last loss {value:.2f}, "
            f"{seen / spent:,.0f} images/s"
        )

    @torch.no_grad()
    def label_views(
        self, pixels: Tensor, first: int, count: int, seed: int, seconds: float, compile_it: bool
    ) -> tuple[Tensor, Tensor]:
        """Draw views first … first + count - 1 of every image and ask the teacher about each.

        Gives uint8 (views · n, 3, 64, 64) and fp16 logits (views · n, 1000), view by view. View 0
        is the image itself. Stops early rather than start a view that would outlast `seconds`.
        """
        self.model.eval()
        n = len(pixels)
        views = torch.empty(count, *pixels.shape, dtype=torch.uint8, device=self.device)
        logits = torch.empty(count, n, 1000, dtype=torch.float16, device=self.device)
        teacher_logits = compiled(self.logits, compile_it, pixels[:CHUNK])
        started = time.monotonic()
        for k in range(count):
            generator = torch.Generator(self.device).manual_seed(seed * 1000 + first + k)
            for at in range(0, n, CHUNK):
                part = pixels[at : at + CHUNK]
                view = part if first + k == 0 else augment(part, generator)
                views[k, at : at + CHUNK] = view
                logits[k, at : at + CHUNK] = teacher_logits(view).half()
            logits[k, 0, 0].item()
            spent = time.monotonic() - started
            if spent * (k + 2) / (k + 1) > seconds:
                break
        print(f"teacher: {k + 1} views in {spent:.1f} s, {(k + 1) * n / spent:,.0f} images/s")
        return views[: k + 1].flatten(0, 1), logits[: k + 1].flatten(0, 1)


class Student(nn.Module):
    """The backbone with its 200-way head, and the 1000-way head that only training needs."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = VisionTransformer(**ARCHITECTURE, drop_path_rate=RECIPE["drop_path"])
        self.extra = nn.Linear(self.vit.embed_dim, 1000)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, 200) and (B, 1000) of normalised images (B, 3, 64, 64)."""
        feature = self.vit.forward_head(self.vit.forward_features(inputs), pre_logits=True)
        return self.vit.head(feature).float(), self.extra(feature).float()

    def loss(
        self,
        pixels: Tensor,
        teacher: Tensor,
        label: Tensor,
        flip: Tensor,
        mask: Tensor,
        columns: Tensor,
    ) -> Tensor:
        """What one batch of views costs; all of a view, its targets too, mixes with one share.

        The flip (B, 1, 1, 1) comes on top of the views' own: the teacher hardly minds, and it
        doubles their number.
        """
        share = mask.mean((1, 2, 3))[:, None]
        inputs = torch.where(flip, pixels.flip(-1), pixels) / 127.5 - 1
        with torch.autocast(pixels.device.type, torch.bfloat16):
            own, extra = self(mixed(inputs, mask))
        t = RECIPE["temperature"]
        wide = mixed((teacher.float() / t).softmax(1), share)
        narrow = mixed(teacher[:, columns].float().softmax(1), share)
        hard = mixed(F.one_hot(label, len(columns)).float(), share)
        target = hard + RECIPE["teacher_share"] * (narrow - hard)
        distilled = F.kl_div((extra / t).log_softmax(1), wide, reduction="batchmean") * t**2
        told = F.cross_entropy(own, target, label_smoothing=RECIPE["label_smoothing"])
        return RECIPE["teacher_weight"] * distilled + RECIPE["label_weight"] * told


class Run:
    """The student in training: weights, their moving average, optimiser and progress.

    On disk it is DIR/step-N/{model,ema,exp_avg,exp_avg_sq}.safetensors, written whole and renamed.
    """

    def __init__(self, device: torch.device) -> None:
        self.student = Student().to(device)
        self.ema = copy.deepcopy(self.student).requires_grad_(False).eval()
        self.optimiser = adamw(self.student)
        self.progress = Progress()

    def step(self, loss: Tensor, rate: float) -> None:
        """Descend, then draw the moving average after the weights."""
        descend(self.optimiser, loss, rate)
        self.progress.steps += 1
        window = 1 + RECIPE["ema_window"] * self.progress.steps
        pull = max(1 / window, 1 - RECIPE["ema_decay"])
        weights = [p.detach() for p in self.student.parameters()]
        torch._foreach_lerp_(list(self.ema.parameters()), weights, pull)

    def save(self, folder: Path) -> None:
        """Write the state and remove older ones."""
        tensors = {"model": self.student.state_dict(), "ema": self.ema.state_dict()}
        for kind in ("exp_avg", "exp_avg_sq"):
            parameters = self.student.named_parameters()
            tensors[kind] = {name: self.optimiser.state[p][kind] for name, p in parameters}
        place = folder / f"step-{self.progress.steps}"
        part = place.with_name(place.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        for name, content in tensors.items():
            note = {"progress": json.dumps(asdict(self.progress))}
            save_file(content, part / f"{name}.safetensors", metadata=note)
        shutil.rmtree(place, ignore_errors=True)
        part.rename(place)
        for old in folder.glob("step-*"):
            if old != place:
                shutil.rmtree(old)

    def load(self, folder: Path) -> None:
        """Read the newest state."""
        places = [path for path in folder.glob("step-*") if path.suffix != ".part"]
        if not places:
            raise SystemExit(f"{folder} holds no step-N to resume: run without --resume first")
        place = max(places, key=lambda path: int(path.name.removeprefix("step-")))
        self.student.load_state_dict(load_file(place / "model.safetensors"))
        self.ema.load_state_dict(load_file(place / "ema.safetensors"))
        first, second = (load_file(place / f"{k}.safetensors") for k in ("exp_avg", "exp_avg_sq"))
        with safe_open(place / "model.safetensors", framework="pt") as file:
            self.progress = Progress(**json.loads(file.metadata()["progress"]))
        for name, p in self.student.named_parameters():
            self.optimiser.state[p] = {
                "step": torch.tensor(float(self.progress.steps), device=p.device),
                "exp_avg": first[name].to(p.device),
                "exp_avg_sq": second[name].to(p.device),
            }

    def train(
        self, train: Pictures, val: Pictures, teacher: Teacher, args: argparse.Namespace
    ) -> bool:
        """Train until the schedule ends (True) or --stop-after is reached (False)."""
        total, done, device = 60 * args.minutes, self.progress, train.pixels.device
        seed = args.seed + done.views
        started = time.monotonic()
        views, logits = teacher.label_views(
            train.pixels, done.views, args.views, args.seed, args.teacher_seconds, args.compile
        )
        done.views += len(views) // len(train.labels)
        done.facts["teacher_seconds"] = time.monotonic() - started
        generator = torch.Generator(device).manual_seed(seed)
        rate = RECIPE["rate"] * args.batch / 1024

        def draw(strength: float) -> tuple[Tensor, ...]:
            which = torch.randint(len(views), (args.batch,), device=device, generator=generator)
            flip = torch.rand(args.batch, 1, 1, 1, device=device, generator=generator) < 0.5
            mask = draw_masks(args.batch, strength, generator)
            label = train.labels[which % len(train.labels)]
            return views[which], logits[which], label, flip, mask, teacher.columns

        loss_of = compiled(self.student.loss, args.compile, *draw(1.0))
        saved, first, per_step = time.monotonic(), (done.steps, done.seconds), 0.0
        while done.seconds < total:
            block = time.monotonic()
            for k in range(BLOCK):
                at = min((done.seconds + k * per_step) / total, 1.0)
                strength = min((1 - at) / (1 - RECIPE["mix_until"]), 1.0)
                loss = loss_of(*draw(strength))
                self.step(loss, rate * scheduled(at))
            value = loss.item()
            now = time.monotonic()
            if not math.isfinite(value):
                raise SystemExit(f"the loss is {value} after {done.steps} steps: lower the rate")
            per_step = (now - block) / BLOCK
            done.seconds += now - block
            speed = args.batch * (done.steps - first[0]) / (done.seconds - first[1])
            if done.steps - first[0] == 10 * BLOCK:
                epochs = speed * (total - done.seconds) / len(train.labels)
                print(f"student: {speed:,.0f} images/s, {epochs:.0f} epochs to go")
            last = done.curve[-1]["progress"] if done.curve else 0.0
            stop = args.stop_after is not None and now - args.started > args.stop_after
            if done.seconds / total - last >= 0.1 or done.seconds >= total:
                row = {
                    "progress": round(done.seconds / total, 4),
                    "steps": done.steps,
                    "epochs": round(done.steps * args.batch / len(train.labels), 2),
                    "loss": round(value, 4),
                    "val_raw": accuracy(self.student.vit, val),
                    "val_ema": accuracy(self.ema.vit, val),
                    "pictures_per_second": round(speed),
                }
                done.curve.append(row)
                print(json.dumps(row))
            if stop or done.seconds >= total or now - saved > SAVE_EVERY:
                self.save(args.state)
                saved = time.monotonic()
            if stop and done.seconds < total:
                return False
        return True


def write_results(run: Run, classes: list[str], val: Pictures, args: argparse.Namespace) -> None:
    """Write the fp16 weights, read them back, and report what was read back."""
    args.out.mkdir(parents=True, exist_ok=True)
    path, part = args.out / "backbone.safetensors", args.out / "backbone.safetensors.part"
    weights = {name: value.half() for name, value in run.ema.vit.state_dict().items()}
    note = {"architecture": json.dumps(ARCHITECTURE), "classes": json.dumps(classes)}
    save_file(weights, part, metadata=note)
    part.replace(path)
    vit = VisionTransformer(**ARCHITECTURE)
    vit.load_state_dict({name: value.float() for name, value in load_file(path).items()})
    torch.set_float32_matmul_precision("highest")
    cuda = val.pixels.is_cuda
    report = {
        "val_top1": accuracy(vit.to(val.pixels.device), val),
        "val_pictures": len(val.labels),
        "parameters": sum(p.numel() for p in vit.parameters()),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "architecture": ARCHITECTURE,
        "normalisation": {"mean": 0.5, "std": 0.5},
        "recipe": RECIPE,
        "teacher": {"model": "vit_tiny_patch16_224", "sha256": args.teacher_hash},
        "options": {k: getattr(args, k) for k in ("seed", "batch", "minutes", "tuning_seconds")},
        **asdict(run.progress),
        "versions": {m.__name__: m.__version__ for m in (torch, timm, np)},
        "python": platform.python_version(),
        "hardware": torch.cuda.get_device_name() if cuda else platform.machine(),
    }
    part = args.out / "training.json.part"
    part.write_text(json.dumps(report, indent=1) + "\n")
    part.replace(args.out / "training.json")
    print(f"{path}: {path.stat().st_size:,} bytes, {report['val_top1']} % top-1, fp16 read back")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Pre-train the embedded backbone.")
    parser.add_argument("shards", type=Path)
    parser.add_argument("teacher", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--state", type=Path, required=True, help="folder for --resume")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument(
        "--minutes", type=float, default=10.0, help="training time over all commands"
    )
    parser.add_argument("--stop-after", type=float, help="seconds from the start of this command")
    parser.add_argument("--views", type=int, default=24, help="views per image, in each command")
    parser.add_argument(
        "--teacher-seconds", type=float, default=110.0, help="time limit for those views"
    )
    parser.add_argument(
        "--tuning-seconds", type=float, default=60.0, help="time for tuning the teacher; 0: none"
    )
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit", type=int, help="images per split, for a trial run")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    args.started = time.monotonic()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high")
    train, val, classes = load_shards(args.shards, args.limit)
    print(f"decoded {len(train.labels)} + {len(val.labels)} in {since(args):.1f} s")
    device = torch.device(args.device)
    train, val = train.to(device), val.to(device)
    args.teacher_hash = hashlib.sha256(args.teacher.read_bytes()).hexdigest()
    run = Run(device)
    if (size := 2 * sum(p.numel() for p in run.student.vit.parameters())) > SIZE_LIMIT:
        raise SystemExit(f"the weights would take {size:,} bytes, the limit is {SIZE_LIMIT:,}")
    tuned = args.state / "teacher.safetensors"
    if args.resume:
        run.load(args.state)
        teacher = Teacher(tuned, classes, device)
    else:
        teacher = Teacher(args.teacher, classes, device)
        run.progress.facts["teacher_val_before"] = teacher.accuracy(val)
        if args.tuning_seconds > 0:
            teacher.tune(train, args.tuning_seconds, args.seed)
        args.state.mkdir(parents=True, exist_ok=True)
        weights = {name: value.half() for name, value in teacher.model.state_dict().items()}
        save_file(weights, tuned.with_name(tuned.name + ".part"))
        tuned.with_name(tuned.name + ".part").replace(tuned)
        run.progress.facts["teacher_val"] = teacher.accuracy(val)
        some = Pictures(train.pixels[: len(val.labels)], train.labels[: len(val.labels)])
        run.progress.facts["teacher_train"] = teacher.accuracy(some)
    print(f"teacher ready after {since(args):.1f} s: {run.progress.facts}")
    finished = run.progress.seconds >= 60 * args.minutes or run.train(train, val, teacher, args)
    if not finished:
        at = run.progress.seconds / (0.6 * args.minutes)
        print(f"stopped at {at:.1f} % after {since(args):.0f} s; go on with --resume")
        sys.exit(3)
    write_results(run, classes, val, args)
    print(f"finished after {since(args):.0f} s")


def since(args: argparse.Namespace) -> float:
    return time.monotonic() - float(args.started)


if __name__ == "__main__":
    main()
