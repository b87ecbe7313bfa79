"""The command line: what it prints, what it leaves, how it fails."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
import yaml
from PIL import Image
from typer.testing import CliRunner

import cprompt
from cprompt import cli
from cprompt.cli.arguments import parse_settings, parse_value, split_settings
from cprompt.cli.lists import SUGGESTED
from cprompt.data.registry import DATASETS
from cprompt.errors import ConfigError
from cprompt.methods.registry import METHODS
from cprompt.research import metrics
from cprompt.research.config import PARTS, resolve
from cprompt.research.experiment import CHECKPOINT
from cprompt.research.experiment import run as run_experiment
from cprompt.research.recipes import benchmarks, flavours, method_recipe
from cprompt.research.record import Record, load_record
from cprompt.training.observers import Observer
from cprompt.vit.embedded import EMBEDDED

TINY = [
    *("--backbone", "test_vit"),
    *("--weights", "random:0"),
    *("--backbone.image_size", "48"),
    *("--data.options", "{classes: 6, train_per_class: 4, test_per_class: 2, size: 48}"),
    *("--stream.sizes", "3,1,2"),
    *("--training.epochs", "1"),
    *("--method.length", "2"),
    *("--execution.device", "cpu"),
]


@pytest.fixture(autouse=True)
def _wide_and_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lines are not wrapped, and a run without --out goes nowhere near the repository."""
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)


def plain(text: str) -> str:
    """Without colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def ok(*arguments: str) -> str:
    """What a command that succeeds prints."""
    result = CliRunner().invoke(cli.app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return plain(result.stdout)


class Main:
    """Runs `main()` as the shell would: exit status, stdout, stderr."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["cprompt", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        printed = self.capsys.readouterr()
        code = ended.value.code
        return code if isinstance(code, int) else 0, plain(printed.out), plain(printed.err)

    def error(self, *arguments: str) -> str:
        """The message of a command that fails as it should: status 2, one line, no traceback."""
        code, _, err = self(*arguments)
        assert code == 2, err
        assert err.startswith("error: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        return err.removeprefix("error: ").rstrip("\n")


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Main:
    return Main(monkeypatch, capsys)


@pytest.fixture(scope="module")
def a_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder of a run with every mode, and what was printed."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "300")
        printed = ok(
            *("run", "shapes", *TINY),
            *("--evaluation.modes", "selected,given,first", "--out", str(folder)),
        )
    return folder, printed


# --- run ----------------------------------------------------------------------------------------


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


def test_run_prints_a_line_a_task_the_matrix_the_metrics_and_where_the_record_is(
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


def squeezed(text: str) -> str:
    return re.sub(r" +", " ", text)


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


def test_a_dry_run_prints_every_setting_and_does_nothing(tmp_path: Path) -> None:
    printed = ok("run", "cars10", "--dry-run", "--seed", "87", "--data", "/pictures")
    shown = yaml.safe_load(printed)
    settings = resolve(
        "cars10",
        overrides={
            "seeds.order": 87,
            "seeds.init": 87,
            "seeds.data": 87,
            "data.root": "/pictures",
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
    expected["stream"] = {"increment": None, "first": None, "tasks": 4, "sizes": None}
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
        overrides=parse_settings(TINY[4:])
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
    assert message.startswith("stopped already holds a run; pass --resume")
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

    monkeypatch.setattr("cprompt.cli.run.run_experiment", interrupted)
    code, out, _ = main("run", "shapes")
    assert code == 130
    assert "stopped; the same command with --resume goes on from the last checkpoint" in out


# --- show ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("selected", ["1 80.0 80.0", "2 70.0 80.0 73.3", "3 50.0 60.0 33.3 50.0"]),
        ("given", ["1 100.0 100.0", "2 90.0 100.0 93.3", "3 70.0 80.0 66.7 72.2"]),
        ("first", ["1 30.0 30.0", "2 40.0 40.0 40.0", "3 30.0 20.0 33.3 27.8"]),
    ],
)
def test_show_prints_the_settings_the_matrix_of_a_mode_and_the_metrics(
    tmp_path: Path, hand_record: Record, mode: str, rows: list[str]
) -> None:
    hand_record.save(tmp_path)
    for place in (tmp_path, tmp_path / "record.json"):
        printed = ok("show", str(place), "--mode", mode)
        assert printed.startswith(
            "cprompt on shapes (shapes), finished: 3 of 3 tasks, 5 classes\n"
            "backbone test_vit (random:0, 0123456789ab)\n"
            "seeds: order 1993, init 1, data 1\n"
            "time: training 61 s, evaluation 3 s\n"
            "on cprompt 0, torch 2, cpu abacus, cpu_count 2\n"
        )
        lines = [squeezed(line).strip() for line in printed.splitlines()]
        start = lines.index("after task on 1 on 2 on 3 all seen") + 1
        assert lines[start : start + 3] == rows
        assert "Last-acc 50.00" in lines


def test_show_says_selected_unless_told(a_run: tuple[Path, str]) -> None:
    folder, _ = a_run
    assert ok("show", str(folder)) == ok("show", str(folder), "--mode", "selected")


def test_show_refuses_a_mode_that_was_not_measured(a_run: tuple[Path, str], main: Main) -> None:
    code, _, err = main("show", str(a_run[0]), "--mode", "oracle")
    assert code == 2
    assert "'oracle' was not measured; this record has selected, given, first" in err
    assert "Traceback" not in err


def test_show_of_a_run_just_begun_prints_what_there_is(tmp_path: Path, hand_record: Record) -> None:
    hand_record.rows = []
    hand_record.save(tmp_path)
    printed = ok("show", str(tmp_path))
    assert "under way: 0 of 3 tasks, 5 classes" in printed
    assert "Accuracy" not in printed


# --- list ---------------------------------------------------------------------------------------


def first_words(text: str) -> set[str]:
    return {line.split()[0] for line in text.splitlines() if line.strip()}


def test_list_names_everything_there_is() -> None:
    assert first_words(ok("list", "methods")) >= set(METHODS)
    assert first_words(ok("list", "benchmarks")) >= set(benchmarks())
    assert first_words(ok("list", "datasets")) >= set(DATASETS)
    assert first_words(ok("list", "backbones")) >= {*SUGGESTED, *EMBEDDED}


def test_list_says_what_each_method_is() -> None:
    printed = squeezed(ok("list", "methods"))
    assert "cprompt A prompt, a head and keys for each task, trained the way they" in printed
    assert "joint One prompt and one head trained on all classes at once" in printed


def test_list_settings_names_every_setting_with_its_default() -> None:
    printed = ok("list", "settings")
    lines = [line.split() for line in printed.splitlines()]
    for part, config in PARTS.items():
        for name in config.__dataclass_fields__:
            assert f"{part}.{name}" in first_words(printed)
    for method, cls in METHODS.items():
        assert ["with", "--method", method] in lines
        for name in cls.Config.__dataclass_fields__:
            assert f"method.{name}" in first_words(printed)
    assert ["training.lr", "0.01", "initial", "learning", "rate"] in lines
    assert "(inputs in [0,1])" in printed


def test_list_recipes_names_every_recipe_and_what_it_sets() -> None:
    printed = ok("list", "recipes")
    lines = [line.split() for line in printed.splitlines()]
    sets = "training.epochs=120, method.tau=1.15, method.margin=0.1"
    assert ["cars10", "cprompt", *sets.split()] in lines
    for method in METHODS:
        for flavour in flavours(method) or [""]:
            recipe = method_recipe(method, flavour or None)[1]
            for benchmark in ["all", *recipe.get("benchmarks", {})]:
                start = [benchmark, method, *flavour.split()]
                assert start in [line[: len(start)] for line in lines], start


def test_what_cannot_be_listed_is_answered_with_what_can(main: Main) -> None:
    code, _, err = main("list", "colours")
    assert code == 2
    assert all(kind in err for kind in ("methods", "benchmarks", "datasets", "backbones"))


# --- doctor -------------------------------------------------------------------------------------


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of eight different images, in a folder whose name looks like markup."""
    root = tmp_path / "my [red] photos"
    rng = np.random.default_rng(0)
    for name in ("[red]", "b"):
        (root / name).mkdir(parents=True)
        for i in range(8):
            pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root


def test_doctor_counts_a_healthy_folder_and_succeeds(photos: Path) -> None:
    printed = ok("doctor", "folder", str(photos), "--data.options.test_fraction", "0.25")
    assert "my [red] photos: 12 train, 4 test images, 2 classes\n" in printed
    assert "train images per class: 6 to 6, median 6\n" in printed
    assert "nothing wrong found" in printed


def test_doctor_names_a_broken_image_and_ends_with_1(photos: Path, main: Main) -> None:
    (photos / "[red]" / "3.png").write_bytes(b"")
    code, out, err = main("doctor", "folder", str(photos))
    assert (code, err) == (1, "")
    assert "error: 1 images cannot be read\n" in out
    assert f"    {photos / '[red]' / '3.png'} is empty (0 bytes)\n" in out
    assert "  remedy: re-copy or delete" in out
    assert "nothing wrong" not in out


def test_doctor_names_ten_files_or_all(photos: Path, main: Main) -> None:
    for i in range(8):
        for name in ("[red]", "b"):
            whole = (photos / name / f"{i}.png").read_bytes()
            (photos / name / f"{i}.png").write_bytes(whole[:40])
    _, some, _ = main("doctor", "folder", str(photos))
    _, every, _ = main("doctor", "folder", str(photos), "--all")
    assert (some.count(".png "), every.count(".png ")) == (10, 16)
    assert "and 6 more; --all names them" in some
    assert "more; --all" not in every


def test_doctor_says_what_is_wrong_with_a_folder_that_is_not_there(main: Main) -> None:
    code, out, err = main("doctor", "folder", "nowhere")
    assert (code, err) == (1, "")
    assert "error: " in out
    assert "nowhere" in out


def test_doctor_takes_options_of_the_dataset_only(main: Main) -> None:
    message = main.error("doctor", "shapes", "--training.lr", "1")
    assert message == "doctor takes options of the dataset only, as --data.options.NAME VALUE"
    assert main.error("doctor", "shape").startswith("no dataset 'shape'; there are shapes, ")
    assert main.error("doctor", "shapes", "--data.options.sise", "1").startswith(
        "dataset 'shapes' has no option 'sise'; it has classes, "
    )


# --- help and version ---------------------------------------------------------------------------


COMMANDS: dict[str, Any] = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]


def test_the_commands() -> None:
    assert set(COMMANDS) >= {"run", "show", "list", "doctor", "demo"}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_names_every_option_and_argument(command: str) -> None:
    printed = ok(command, "--help")
    for parameter in COMMANDS[command].params:
        assert parameter.help
        names = parameter.opts if parameter.param_type_name == "option" else [parameter.name]
        assert any(re.search(rf"(?<![\w-]){re.escape(n)}\b", printed, re.I) for n in names), names


def test_help_of_all_names_every_command() -> None:
    printed = ok("--help")
    for command in COMMANDS:
        assert re.search(rf"^\W*{command}\s", printed, re.M), command


def test_the_version() -> None:
    assert ok("--version") == f"cprompt {cprompt.__version__}\n"


# --- errors -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--training.epoch 3", "training: no setting 'epoch'; did you mean 'epochs'?"),
        ("--trainin.epochs 3", "no settings 'trainin'; did you mean 'training'?"),
        ("--method.taau 3", "method cprompt: no setting 'taau'; did you mean 'tau'?"),
        ("--training.epochs many", "training.epochs: 'many' is not a whole number"),
        ("--training.epochs 0", "training: epochs 0 must be at least 1"),
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
        ("--config none.yaml", "none.yaml does not exist"),
    ],
)
def test_a_wrong_setting_is_one_line_and_status_2(main: Main, arguments: str, message: str) -> None:
    assert main.error("run", "shapes", *arguments.split()) == message


def test_a_word_that_is_no_setting_is_answered_with_how_settings_are_written(main: Main) -> None:
    for word in ("--epochs", "-x", "5"):
        message = main.error("run", "shapes", word)
        assert message.startswith(f"{word!r} is no option of this command; settings are written")


def test_errors_of_every_kind_are_one_line(main: Main) -> None:
    assert main.error("run", "shape") == "no benchmark 'shape'; did you mean 'shapes'?"
    assert main.error("run", "cars10").startswith("dataset 'stanford_cars' needs the folder")
    assert main.error("run", "shapes", "--method", "x").startswith("no method is called 'x'")
    assert main.error("run", "shapes", *TINY[4:], "--backbone", "nothing").startswith(
        "timm has no model 'nothing'"
    )
    assert main.error("show", "nowhere") == "nowhere does not exist"
    Path("file").touch()
    message = main.error("run", "shapes", *TINY, "--out", "file/run")
    assert message.startswith("file/run/record.json cannot be written (")


def test_an_error_about_a_name_that_looks_like_markup_says_the_name(main: Main) -> None:
    assert main.error("show", "[/b] [red]x") == "[/b] [red]x does not exist"


def test_a_run_folder_that_looks_like_markup_is_printed_as_it_is(
    tmp_path: Path, hand_record: Record
) -> None:
    hand_record.dataset = "my [/b] photos"
    hand_record.save(tmp_path)
    assert "cprompt on shapes (my [/b] photos), finished" in ok("show", str(tmp_path))


# --- settings on the command line ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-3", -3),
        ("1e-3", 0.001),
        ("2.5", 2.5),
        ("true", True),
        ("null", None),
        ("word", "word"),
        ("3,1,2", [3, 1, 2]),
        ("selected, given", ["selected", "given"]),
        ("[3, 1]", [3, 1]),
        ("{a: 1}", {"a": 1}),
        ("random:0", "random:0"),
        ("/a/b [c", "/a/b [c"),
        ("a: b: c", "a: b: c"),
    ],
)
def test_values_are_read_as_what_they_look_like(text: str, value: Any) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_settings_are_told_from_a_command_s_own_words() -> None:
    words = "--a.b 1 run --out x.y --c.d=2 --e.f -3 --resume --g.h --data z --i.j"
    own, settings = split_settings(words.split())
    assert own == ["run", "--out", "x.y", "--resume", "--data", "z"]
    assert settings == ["--a.b", "1", "--c.d=2", "--e.f", "-3", "--g.h", "--i.j"]


@pytest.mark.parametrize(
    "arguments",
    [
        "--training.epochs 3 demo --dry-run --method.tau 1.5",
        "demo --training.epochs=3 --dry-run method.tau=1.5",
        "--dry-run --method.tau 1.5 --training.epochs 3 demo",
    ],
)
def test_settings_may_stand_anywhere(arguments: str) -> None:
    printed = ok("run", *arguments.split())
    assert "  epochs: 3\n" in printed
    assert "  tau: 1.5\n" in printed


def test_three_ways_to_write_a_setting() -> None:
    arguments = ["--a.b", "1", "--a.c=2", "d.e=x=y", "--f.g.h", "-1"]
    assert parse_settings(arguments) == {"a.b": 1, "a.c": 2, "d.e": "x=y", "f.g.h": -1}
    with pytest.raises(ConfigError, match=r"'a\.b' has no value"):
        parse_settings(["a.b", "1"])


# --- import -------------------------------------------------------------------------------------


def test_importing_prints_nothing_and_opens_no_socket() -> None:
    program = """
import socket
class Blocked(socket.socket):
    def __init__(self, *args, **more):
        raise SystemExit("a socket was opened")
def refuse(*args, **more):
    raise SystemExit("a name was looked up")
socket.socket = Blocked
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = refuse
import cprompt
import cprompt.cli
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
