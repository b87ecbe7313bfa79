"""`cprompt learn`: a new model, another batch, and what a model keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from cprompt.errors import ConfigError, ModelError
from tests.cli.common import QUICK, Main, ok


def test_a_batch_is_counted_and_its_classes_named(photos: Path, tmp_path: Path) -> None:
    settings = ["--method.views", "2", "--seed", "4", "--accept", "0.9"]
    told = ok("learn", *settings, tmp_path / "model", photos / "january", *QUICK)
    names = sorted(p.name for p in (photos / "january").iterdir())
    assert "batch 1: learnt 18 photos of 3 classes in " in told
    assert all(repr(name) in told for name in names)
    about = json.loads(ok("info", tmp_path / "model", "--json"))
    assert sorted(each["name"] for each in about["classes"]) == names
    assert about["method"]["settings"]["views"] == 2
    again = ok("learn", tmp_path / "model", photos / "january", "--weights", "random:0")
    assert "batch 2: learnt 18 photos of 3 classes" in again
    assert "; again: " in again


def test_a_model_keeps_the_settings_it_began_with(model: Path, photos: Path) -> None:
    with pytest.raises(ConfigError, match=r"'method', 'training\.lr'") as error:
        ok("learn", model, photos / "january", "--method", "l2p", "--training.lr", "1")
    assert error.value.file == str(model)


def test_only_settings_of_the_method_and_of_training_are_taken(
    photos: Path, main: Main, tmp_path: Path
) -> None:
    message = main.error("learn", tmp_path / "m", photos / "january", "--stream.tasks", "2")
    assert "'stream.tasks'" in message
    assert not (tmp_path / "m").exists()


def test_a_model_folder_that_cannot_be_made_is_refused_before_learning(
    photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be written"):
        ok("learn", tmp_path / "file" / "model", photos / "january", *QUICK)


def test_an_interrupted_batch_leaves_the_model_as_it_was(
    model: Path, photos: Path, main: Main, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    before = ok("info", model, "--json")
    monkeypatch.setattr("cprompt.ContinualClassifier.learn", interrupted)
    code, out, _ = main("learn", model, photos / "january", "--weights", "random:0")
    assert code == 130
    assert "stopped" in out
    assert ok("info", model, "--json") == before


def test_a_photo_that_is_there_twice_is_told(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos / "february", tmp_path / "batch")
    first = next((tmp_path / "batch").rglob("*.png"))
    shutil.copy(first, first.with_name("copy [1].png"))
    told = ok("learn", "model", tmp_path / "batch", *QUICK)
    (line,) = [line for line in told.splitlines() if "more than once" in line]
    assert line.startswith("warning: ")
    assert "copy [1].png" in line
    assert str(first) in line


def test_a_first_batch_that_fails_leaves_no_folder(main: Main, tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.jpg").write_bytes(b"")
    main.error("learn", tmp_path / "models" / "new", tmp_path / "photos", *QUICK)
    assert [path.name for path in tmp_path.iterdir()] == ["photos"]


def test_a_model_whose_description_is_gone_is_refused_before_learning(
    model: Path, photos: Path, main: Main, tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(model, folder)
    (folder / "model.json").unlink()
    before = {path.name for path in folder.iterdir()}
    for asked in (("learn", folder, photos / "january", *QUICK), ("info", folder)):
        assert "model.json: is missing; " in main.error(*asked)
        assert {path.name for path in folder.iterdir()} - {".lock"} == before - {".lock"}
    ok("undo", folder)
    assert json.loads(ok("info", folder, "--json"))["generation"] == 1


def test_why_no_photo_is_called_unknown(photos: Path, tmp_path: Path) -> None:
    assert "too few" not in ok("learn", "a", photos / "january", *QUICK)
    told = ok("learn", "b", photos / "january", *QUICK, "--method.keep", "0")
    assert "no photo is called unknown, because no features are kept to tell by" in told
    told = ok("doctor", photos / "january", "--model", "b", "--weights", "random:0")
    assert "warning: this model cannot tell which photos it has learnt" in told
    told = ok("doctor", photos / "january", "--model", "a", "--weights", "random:0")
    assert "cannot tell" not in told
    told = ok("learn", "c", photos / "january", *QUICK, "--method.head", "single")
    assert (
        "no photo is called unknown, because a single head leaves no photo out to tell by" in told
    )
    told = ok("doctor", photos / "january", "--model", "c", "--weights", "random:0")
    assert "has a single head" in told


def test_with_few_classes_unknown_photos_are_hardly_recognised(
    photos: Path, tmp_path: Path
) -> None:
    told = ok("learn", "three", photos / "january", *QUICK)
    assert "hardly" not in told
    told = ok("learn", "two", photos / "february", *QUICK)
    assert "with 2 classes photos of anything else are hardly recognised as unknown" in told


def test_a_folder_of_batches_and_loose_photos_are_told(photos: Path, tmp_path: Path) -> None:
    plain = ok("learn", "a", photos / "january", *QUICK)
    assert "warning" not in plain
    shutil.copytree(photos, tmp_path / "photos")
    first, second = sorted((tmp_path / "photos").rglob("*.png"))[:2]
    for file, name in ((first, "x.png"), (second, "y.png")):
        shutil.copy(file, tmp_path / "photos" / name)
    shutil.rmtree(tmp_path / "photos" / "test")
    for told in (
        ok("learn", "m", tmp_path / "photos", *QUICK),
        ok("doctor", tmp_path / "photos"),
    ):
        assert "warning: 2 images lie beside the class folders and are left out" in told
        assert "x.png" in told
        assert "2 classes have no image but in several folders below" in told
        assert str(tmp_path / "photos" / "january") in told


def test_a_batch_that_is_learnt_again_is_told(photos: Path, tmp_path: Path) -> None:
    ok("learn", "model", photos / "january", *QUICK)
    told = ok("learn", "model", photos / "february", "--weights", "random:0")
    assert "warning" not in told
    told = ok("learn", "model", photos / "january", "--weights", "random:0")
    assert "warning: at least 18 photos were learnt in an earlier batch, so they count" in told


# --- past one process ---------------------------------------------------------------------------


def test_photos_of_a_list_are_those_of_their_folder(photos: Path, tmp_path: Path) -> None:
    lines = [f"{file}\t{file.parent.name}" for file in (photos / "january").rglob("*.png")]
    (tmp_path / "january.txt").write_text("\n".join(lines), "utf-8")
    told = ok("learn", tmp_path / "model", tmp_path / "january.txt", *QUICK)
    assert "learnt 18 photos of 3 classes" in told


def test_options_of_a_cluster_need_one(photos: Path, main: Main) -> None:
    assert "--on" in main.error("learn", "m", photos / "january", "--shards", "2")


def test_a_cluster_that_does_not_answer_leaves_no_model(
    photos: Path, main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    asked = ("learn", tmp_path / "m", photos / "january", *QUICK, "--on", "127.0.0.1:9")
    assert "no Ray cluster answers" in main.error(*asked)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize("where", [(), ("--on", "ray")], ids=["here", "ray"])
def test_unread_photos_are_listed_after_the_others_are_learnt(
    where: tuple[str, ...],
    photos: Path,
    main: Main,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.classifier.test_shards import one_by_one

    monkeypatch.setattr("cprompt.cluster.learning.CountOnRay", lambda *asked: one_by_one(1))
    shutil.copytree(photos / "january", tmp_path / "batch")
    files = sorted((tmp_path / "batch").rglob("*.png"))
    bad = [files[2], files[-1]]
    for file in bad:
        file.write_bytes(b"")
    asked = ("learn", tmp_path / "m", tmp_path / "batch", *QUICK, *where)
    refused = main.error(*asked, "--strict")
    assert "2 of 18 photos cannot be read" in refused
    assert all(str(file) in refused for file in bad)
    assert not (tmp_path / "m").exists()
    code, out, err = main(*asked)
    assert code == 3
    assert "learnt 16 photos of 3 classes" in out
    assert "2 more photos cannot be read and were left out" in err
    assert all(f"{file}: is empty" in err for file in bad)
