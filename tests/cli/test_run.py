"""`cprompt run`: what it prints, what it leaves, how it resumes and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from cprompt.cli.arguments import parse_settings, settings_as_options
from cprompt.research import metrics
from cprompt.research.config import resolve
from cprompt.research.experiment import CHECKPOINT
from cprompt.research.experiment import run as run_experiment
from cprompt.research.record import load_record
from cprompt.training.observers import Observer
from tests.cli.common import TINY, Main, ok, squeezed


def test_run_leaves_the_record_of_the_settings_it_was_given(a_run: tuple[Path, str]) -> None:
    folder, _ = a_run
    record = load_record(folder)
    assert record.finished
    assert record.stream.sizes == (3, 1, 2)
    assert record.images == {"train": 24, "test": 12}
    config = record.config
    assert (config["benchmark"], config["method"]["name"]) == ("shapes", "cprompt")
    assert (config["method"]["length"], config["training"]["epochs"]) == (2, 1)
    assert config["evaluation"]["modes"] == ["selected", "given", "first"]
    assert set(record.rows[-1].correct) == {"selected", "given", "first"}
    assert record.backbone["weights"] == "random:0"


def test_run_prints_a_line_per_task_the_matrix_the_metrics_and_where_the_record_is(
    a_run: tuple[Path, str],
) -> None:
    folder, printed = a_run
    record = load_record(folder)
    seen = metrics.seen_accuracy(record.matrix())
    for task, accuracy in enumerate(seen, start=1):
        assert f"task {task}/3: accuracy on all classes so far {accuracy:.1f} %" in printed
    last = metrics.accuracy_matrix(record.matrix())[-1]
    row = ["3", *(f"{value:.1f}" for value in last), f"{seen[-1]:.1f}"]
    assert row in [line.split() for line in printed.splitlines()]
    assert f"Avg-acc {record.summary()['average_accuracy']:.2f}" in squeezed(printed)
    assert printed.splitlines()[-1] == f"record: {folder / 'record.json'}"


def test_run_gives_the_numbers_of_the_python_function(
    a_run: tuple[Path, str], tmp_path: Path
) -> None:
    settings = resolve(
        "shapes",
        overrides={
            "backbone.name": "test_vit",
            "backbone.weights": "random:0",
            "backbone.image_size": 48,
            "data.options": {"classes": 6, "train_per_class": 4, "test_per_class": 2, "size": 48},
            "stream.sizes": [3, 1, 2],
            "training.epochs": 1,
            "method.length": 2,
            "execution.device": "cpu",
            "evaluation.modes": ["selected", "given", "first"],
        },
    )
    assert run_experiment(settings, tmp_path / "other").rows == load_record(a_run[0]).rows


def test_weights_named_after_their_model_need_no_backbone() -> None:
    def name(*options: str) -> str:
        printed = yaml.safe_load(ok("run", "shapes", *options, "--dry-run"))
        found: str = printed["backbone"]["name"]
        return found

    file = "downloads/convnext_tiny.fb_in22k.safetensors"
    assert name("--weights", file) == "convnext_tiny.fb_in22k"
    assert name("--weights", file, "--backbone", "other") == "other"
    assert name("--weights", "mine.pth") == name()


def test_a_dry_run_prints_every_setting_and_does_nothing(tmp_path: Path) -> None:
    printed = ok("run", "cars10", "--dry-run", "--seed", "87", "--data", "/images")
    shown = yaml.safe_load(printed)
    settings = resolve(
        "cars10",
        overrides={
            "seeds.order": 87,
            "seeds.init": 87,
            "seeds.data": 87,
            "data.root": "/images",
        },
    )
    assert shown == settings.to_dict()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("method", ["cprompt", "finetune", "joint"])
def test_what_a_dry_run_prints_makes_the_same_run_from_a_file(tmp_path: Path, method: str) -> None:
    settings = ["--training.lr", "0.5", "--stream.sizes", "[196]", "--seeds.order", "natural"]
    printed = ok("run", "cars10", "--method", method, *settings, "--dry-run")
    (tmp_path / "mine.yaml").write_text(printed)
    again = ok("run", "cars10", "--method", method, "--config", "mine.yaml", "--dry-run")
    assert again == printed
    changed = ok(
        *("run", "cars10", "--method", method, "--config", "mine.yaml"),
        *("--dry-run", "--training.lr=0.25", "stream.tasks=4"),
    )
    expected = yaml.safe_load(printed)
    expected["training"]["lr"] = 0.25
    expected["stream"] |= {"tasks": 4, "sizes": None}
    assert yaml.safe_load(changed) == expected


def test_a_file_of_another_method_is_not_taken_for_this_one(tmp_path: Path, main: Main) -> None:
    (tmp_path / "mine.yaml").write_text(ok("run", "shapes", "--method", "finetune", "--dry-run"))
    message = main.error("run", "shapes", "--config", "mine.yaml")
    assert message.startswith(
        "the settings are for method 'finetune', but the run is for 'cprompt'"
    )


def test_a_setting_by_its_name_beats_the_short_option() -> None:
    printed = ok("run", "shapes", "--seed", "3", "--seeds.init", "9", "--dry-run")
    assert yaml.safe_load(printed)["seeds"] == {"order": 3, "init": 9, "data": 3}


class StopInTheSecondTask(Observer):
    def task_begins(self, task: int, n_classes: int, steps: int, done: int) -> None:
        if task == 1:
            raise KeyboardInterrupt


def test_resume_goes_on_with_a_stopped_run(a_run: tuple[Path, str], main: Main) -> None:
    arguments = ["run", "shapes", *TINY, "--evaluation.modes", "selected,given,first"]
    settings = resolve(
        "shapes",
        overrides=parse_settings(settings_as_options(TINY[4:])[1::2])
        | {
            "backbone.name": "test_vit",
            "backbone.weights": "random:0",
            "evaluation.modes": ["selected", "given", "first"],
        },
    )
    with pytest.raises(KeyboardInterrupt):
        run_experiment(settings, Path("stopped"), observer=StopInTheSecondTask())
    assert len(load_record(Path("stopped")).rows) == 1
    message = main.error(*arguments, "--out", "stopped")
    assert message.startswith("stopped: already holds a run; pass --resume")
    printed = ok(*arguments, "--out", "stopped", "--resume")
    assert "task 1/3:" not in printed
    assert "task 2/3:" in printed
    assert load_record(Path("stopped")).rows == load_record(a_run[0]).rows


def test_a_finished_run_is_shown_again_by_resume(a_run: tuple[Path, str]) -> None:
    folder, first = a_run
    before = (folder / CHECKPOINT).read_bytes()
    printed = ok(
        *("run", "shapes", *TINY, "--evaluation.modes", "selected,given,first"),
        *("--out", str(folder), "--resume"),
    )
    assert printed.strip() == first[first.index("Accuracy in %") :].strip()
    assert (folder / CHECKPOINT).read_bytes() == before


def test_an_interrupted_command_says_how_to_go_on(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cprompt.research.experiment.run", interrupted)
    code, out, _ = main("run", "shapes")
    assert code == 130
    assert "stopped" in out
    assert "--resume" in out


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--training.epoch 3", "training: no setting 'epoch'; did you mean 'epochs'?"),
        ("--trainin.epochs 3", "no settings 'trainin'; did you mean 'training'?"),
        ("--method.taau 3", "method cprompt: no setting 'taau'; did you mean 'tau'?"),
        ("--training.epochs many", "training.epochs: 'many' is not a whole number"),
        ("--training.epochs -1", "training: epochs -1 must not be negative"),
        ("--training.momentum 1", "training: momentum 1.0 must be in [0, 1)"),
        (
            "--training.epochs",
            "setting 'training.epochs' has no value; write --training.epochs VALUE",
        ),
        (
            "--training.epochs --training.lr 1",
            "setting 'training.epochs' has no value; write --training.epochs VALUE",
        ),
        ("--flavour mine", "cprompt has no flavour 'mine'; it has only one set of settings"),
        ("--config none.yaml", "none.yaml: does not exist"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(main: Main, arguments: str, message: str) -> None:
    assert main.error("run", "shapes", *arguments.split()) == message


def test_wrong_names_are_one_line(main: Main) -> None:
    assert main.error("run", "shape") == "no benchmark 'shape'; did you mean 'shapes'?"
    assert main.error("run", "cars10").startswith("dataset 'stanford_cars' needs the folder")
    assert main.error("run", "shapes", "--method", "x").startswith("no method is called 'x'")
    assert main.error("run", "shapes", *TINY[4:], "--backbone", "nothing").startswith(
        "timm has no model 'nothing'"
    )


def test_wrong_weights_backbones_and_devices_are_one_line_that_helps(
    main: Main, tmp_path: Path
) -> None:
    def message(*words: str) -> str:
        return main.error("run", "demo", *words)

    assert message("--weights", "nofile.safetensors") == (
        "nofile.safetensors: does not exist; expected a file of weights"
    )
    (tmp_path / "mine.safetensors").touch()
    said = message("--weights", "mine.safetensors")
    assert said.startswith("vit_micro_patch8_64.tiny_imagenet is embedded with its weights")
    assert "--backbone" in said
    assert message("--backbone", "vit_tny_patch16_224").startswith(
        "timm has no model 'vit_tny_patch16_224'; did you mean 'vit_tiny_patch16_224'?"
    )
    assert message("--execution.device", "tpu") == (
        "device 'tpu' cannot be used here; use auto, cpu, cuda or mps"
    )


def test_a_list_of_one_needs_no_brackets(main: Main) -> None:
    code, printed, _ = main("run", "demo", "--evaluation.modes", "selected", "--dry-run")
    assert code == 0
    assert "modes:\n  - selected\n" in printed


def test_a_folder_that_cannot_be_written_is_refused_before_anything_is_loaded(
    main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(*args: object, **options: object) -> None:
        raise AssertionError("a run was started")

    monkeypatch.setattr("cprompt.research.experiment.run", run)
    Path("file").touch()
    message = main.error("run", "shapes", *TINY, "--out", "file/run")
    assert message.startswith("file/run/record.json: cannot be written, ")
