"""`explore classify`, and predictions of its runs."""

import gc
import json
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import explore as package
from explore import images
from explore.cli.classify import command, experiment
from explore.core import files
from explore.core.errors import InputError
from explore.execution import parallel
from explore.learning import classification
from explore.learning.loaded import TableWarning
from explore.runs import record
from tests.pictures import shares

TINY = ["classify", "--dataset", "digits", "--net", "mlp", "-p", "net.hidden=12", "--epochs", "3", "--samples", "5"]
RUN = Path("runs/classify-digits-mlp-noisy-kfac")


@pytest.fixture
def classify(explore):
    """Runs a tiny `explore classify` that succeeds, and gives the JSON object."""

    def succeed(*arguments):
        result = explore(*TINY, "--train", 150, "--quiet", "--json", *arguments)
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    return succeed


def loaded(run):
    with np.load(run / "probabilities.npz") as found:
        return {name: array for name, array in found.items() if name != "run"}


def arrays(path, count=8, side=8):
    """Two classes that a net can tell apart."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 120, (2 * count, side, side), np.uint8)
    x[::2] += 120
    np.savez(path, x=x[:count], y=np.arange(count) % 2, test_x=x[count:], test_y=np.arange(count) % 2)
    return path


def test_a_run_and_its_files(explore):
    result = explore(*TINY, "--train", 150, "--ood", "none")
    assert result.exit_code == 0, result.output
    assert "% of the test images of digits are wrong" in result.stdout and "150 training and 360 test" in result.stderr
    row = pd.read_csv(RUN / "results.csv").iloc[0]
    kept = loaded(RUN)
    assert kept["probabilities"].shape == (360, 10) and np.array_equal(kept["y"], images.load("digits").test_y)
    assert row.error == pytest.approx((kept["probabilities"].argmax(1) != kept["y"]).mean())
    assert row.alive and row.epochs == 3
    lines = [json.loads(line) for line in (RUN / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3] and lines[-1]["test/error"] == pytest.approx(row.error)
    assert (RUN / "reliability.png").stat().st_size and list((RUN / "tensorboard").iterdir())


def test_predictions_are_those_of_the_test(explore, classify, tmp_path):
    """Of the same images, out of an archive, a folder and one file."""
    classify()
    kept, x = loaded(RUN)["probabilities"], images.load("digits").test_x[:30, 0]
    np.savez("some.npz", x=x)
    found = package.load_run(RUN).predict("some.npz")
    np.testing.assert_allclose(found.filter(like="p_").to_numpy(), kept[:30], rtol=1e-4, atol=1e-6)
    assert found["class"].tolist() == [str(i) for i in kept[:30].argmax(1)]
    Path("pictures").mkdir()
    for i in range(3):
        Image.fromarray(x[i]).save(f"pictures/{i}.png")
    result = explore("predict", RUN, "pictures", "--out", "out.csv")
    assert result.exit_code == 0, result.output
    table = pd.read_csv("out.csv")
    assert table.image.tolist() == ["0.png", "1.png", "2.png"]
    np.testing.assert_allclose(table.filter(like="_p_").to_numpy(), kept[:3], rtol=1e-4, atol=1e-6)
    one = json.loads(explore("predict", RUN, "pictures/1.png", "--json").stdout)
    assert (
        one["rows"] == 1
        and one["predictions"][0]["image"] == "1.png"
        and one["predictions"][0]["_class"] == found["class"].iloc[1]
    )
    shown = explore("predict", RUN, "pictures").stdout
    assert "class" in shown and "p_3" not in shown and "2.png" in shown
    refused = explore("predict", RUN, "pictures", "--quantiles", "0.5")
    assert (
        refused.exit_code == 2
        and "a classification predicts probabilities only. Leave out quantiles (--quantiles)" in refused.stderr
    )
    with pytest.raises(InputError, match="predicts images"):
        package.load_run(RUN).predict(pd.DataFrame({"a": [1]}))
    with pytest.raises(InputError, match="gone.png does not exist"):
        package.load_run(RUN).predict("gone.png")


def test_other_images_of_another_kind_are_no_continuation(explore, monkeypatch):
    """Those that are gone, or others, are refused; a finished run needs them no more."""
    arrays("mine.npz")
    noise = np.random.default_rng(1).integers(0, 255, (9, 8, 8), np.uint8)
    np.savez("noise.npz", x=noise)
    with monkeypatch.context() as patch:
        stop(patch)
        begun = explore("classify", "--images", "mine.npz", "--net", "mlp", "--epochs", 3, "--ood", "noise.npz")
    assert begun.exit_code == 130, begun.output
    (run,) = Path("runs").iterdir()

    def resumed():
        """What it says; a result would keep the run's lock."""
        gc.collect()
        result = explore("classify", "--resume", run, "--json")
        return result.exit_code, result.stderr if result.exit_code else result.stdout

    np.savez("noise.npz", x=0 * noise)
    code, said = resumed()
    assert code == 2 and "have changed since the run began" in said, said
    Path("noise.npz").unlink()
    code, said = resumed()
    assert code == 2 and "noise.npz no longer exists. Restore it" in said, said
    np.savez("noise.npz", x=noise)
    code, finished = resumed()
    assert code == 0 and 0 < json.loads(finished)["test"]["auroc_entropy"] < 1, finished
    Path("noise.npz").unlink()
    code, again = resumed()
    assert code == 0 and json.loads(again)["test"] == json.loads(finished)["test"], again


def test_a_fit_whose_probabilities_are_no_numbers_is_told(explore):
    arrays("mine.npz")
    np.savez("noise.npz", x=np.zeros((9, 8, 8), np.uint8))
    result = explore(
        "classify", "--images", "mine.npz", "--net", "mlp", "-p", "net.hidden=4", "--posterior", "map", "--epochs", 3,
        "-p", "lr=1e30", "--ood", "noise.npz", "--name", "hot",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert "the fit diverged and was stopped" in result.stderr and "nan" in result.stdout


def test_a_class_without_test_images_is_said(explore):
    path = arrays("mine.npz")
    with np.load(path) as found:
        own = dict(found)
    keep = own["test_y"] == 0
    np.savez(path, **(own | {"test_x": own["test_x"][keep], "test_y": own["test_y"][keep]}))
    result = explore("classify", "--images", path, "--net", "mlp", "--epochs", 1)
    assert result.exit_code == 0 and "Classes without a test image: 1." in result.stderr, result.output


def test_where_tested_images_are_from_and_what_they_are_called(explore):
    path = arrays("mine.npz")
    options = ["classify", "--images", path, "--net", "mlp", "--posterior", "map", "--epochs", 1, "--json"]
    for more, whole in (([], "test_x"), (["--validate", "0.5"], "x")):
        run = Path(json.loads(explore(*options, "--test", 3, *more).stdout)["run"])
        found, model = loaded(run), package.load_run(run).fitted
        with np.load(path) as own:
            p = model.probabilities(own[whole][found["index"]][:, None])[0]
            assert (own["y" if more else "test_y"][found["index"]] == found["y"]).all()
        assert found["classes"].tolist() == ["0", "1"] and len(set(found["index"])) == 3
        np.testing.assert_allclose(p, found["probabilities"], rtol=1e-5)


def test_what_a_run_said_and_warned_of_stands_in_its_json(explore):
    result = explore(*TINY, "--train", 50, "-p", "lr=1e-9", "--augment", "crop", "--json")
    found = json.loads(result.stdout)
    told = found["warnings"]
    assert told[0].startswith("the model learnt almost nothing: always") and all(
        f"Warning: {t}" in result.stderr for t in told
    )
    assert found["notes"] == ["Augmentation of training images: crop; each counts as 10 examples."]
    assert found["notes"][0] in result.stderr


def test_images_that_were_moved_are_missed(explore):
    path = Path(arrays("mine.npz")).resolve()
    run = json.loads(explore("classify", "--images", path, "--net", "mlp", "--epochs", 1, "--json").stdout)["run"]
    path.rename("moved.npz")
    result = explore("classify", "--resume", run)
    assert result.exit_code == 2 and f"{path} does not exist; to continue a run, restore images" in result.stderr


def test_batch_normalisations_that_stay_are_said(explore):
    net = ["--net", "vgg16", "-p", "net.batch_norm=true", "-p", "net.widths=1,1,1,1,1", "--epochs", 1]
    x, y = np.zeros((4, 32, 32), np.uint8), [0, 1, 0, 1]
    np.savez("large.npz", x=x, y=y, test_x=x, test_y=y)
    for policy, said in (("frozen", True), ("adam", False)):
        result = explore("classify", "--images", "large.npz", *net, "-p", f"batch_norm={policy}")
        assert result.exit_code == 0, result.output
        assert ("The scale and shift of 13 batch normalisations stay fixed at 1 and 0." in result.stderr) == said


def test_warmup_and_resume_of_augmented_images(explore):
    """VOGN counts an image once for each way to augment it."""
    result = explore(
        "classify", "--dataset", "digits", "--train", 60, "--net", "mlp", "-p", "net.hidden=4", "--posterior", "vogn",
        "--augment", "crop", "--warmup", 1, "--epochs", 2,
    )  # fmt: skip
    assert result.exit_code == 0, result.output


def test_a_table_is_no_folder(explore, csv):
    explore("active", "--data", csv, "--target", "y", "--trials", 1, "--rounds", 1, "--epochs", 1, "--test-size", 5)
    result = explore("predict", next(Path("runs").iterdir()), "runs")
    assert result.exit_code == 2 and "is a folder" in result.stderr


def test_predictions_of_colours_are_those_of_the_test(explore, tmp_path):
    """Each channel has a mean and a deviation of its own."""
    rng = np.random.default_rng(2)
    x = rng.integers(0, [40, 250, 120], (40, 6, 6, 3)).astype(np.uint8)
    y = np.arange(20) % 2
    np.savez("own.npz", x=x[:20], y=y, test_x=x[20:], test_y=y)
    result = explore("classify", "--images", "own.npz", "--net", "mlp", "-p", "net.hidden=8", "--epochs", 2, "--json")
    assert result.exit_code == 0, result.output
    run = Path(json.loads(result.stdout)["run"])
    np.savez("some.npz", x=x[20:])
    found = package.load_run(run).predict("some.npz")
    np.testing.assert_allclose(found.filter(like="p_").to_numpy(), loaded(run)["probabilities"], rtol=1e-4, atol=1e-6)


def test_images_of_a_folder_in_memory_and_in_their_files(explore, tmp_path):
    """The same to the bit, also by batches that are augmented; a file of another size is another image."""
    rng = np.random.default_rng(2)
    for i in range(16):
        path = tmp_path / "own" / ("train" if i < 12 else "val") / "ab"[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 200 + 50 * (i % 2), (6, 6, 3)).astype(np.uint8)).save(path)
    made = []
    options = ["--net", "mlp", "-p", "net.hidden=8", "--epochs", 2, "-p", "batch_size=5", "--augment", "resized-crop"]
    for where in ("--no-stream", "--stream"):
        result = explore("classify", "--images", tmp_path / "own", *options, where, "--ood", "none", "--json")
        assert result.exit_code == 0, result.output
        assert ("Images are read from their files during" in result.stderr) == (where == "--stream")
        made.append(Path(json.loads(result.stdout)["run"]))
    for one, other in zip(*(loaded(run).values() for run in made), strict=True):
        np.testing.assert_array_equal(one, other)
    assert package.load_run(made[1]).predict(tmp_path / "own" / "val").shape[0] == 4
    Image.fromarray(np.zeros((6, 6, 3), np.uint8)).save(path)
    result = explore("classify", "--resume", made[1])
    assert result.exit_code == 2 and "have changed since the run began" in result.stderr


def test_a_part_of_the_test_images(explore, classify):
    """The same ones in each run of a seed."""
    kept = []
    for name in ("a", "b"):
        classify("--test", 40, "--name", name)
        kept.append(loaded(Path(f"runs/classify-{name}")))
    assert kept[0]["probabilities"].shape == (40, 10) and np.array_equal(kept[0]["y"], kept[1]["y"])
    result = explore(*TINY, "--test", 361)
    assert result.exit_code == 2 and "--test is 361, but only" in result.stderr


def test_it_measures_as_often_as_is_asked_for(classify):
    whole, found = classify(), classify("--measure", 2)
    assert found["test"] == whole["test"]
    lines = Path(found["run"], "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [2, 3]


def stop(patch):
    """Interrupt a fit after two measurements."""
    follow = classification.follow

    def interrupted(*args):
        twice = 0
        for event in follow(*args):
            yield event
            twice += isinstance(event, classification.Measured)
            if twice == 2:
                raise KeyboardInterrupt

    patch.setattr(classification, "follow", interrupted)


def test_interrupted_and_resumed_equals_uninterrupted(explore, classify, monkeypatch):
    options = ("--augment", "crop", "--warmup", "2")
    whole = classify(*options, "--name", "whole")
    with monkeypatch.context() as patch:
        stop(patch)
        result = explore(*TINY, "--train", 150, *options, "--name", "half")
    assert result.exit_code == 130 and "Interrupted after 2 of 3 epochs" in result.stderr
    resumed = json.loads(explore("classify", "--resume", "runs/classify-half", "--quiet", "--json").stdout)
    for key in ("test", "alive", "epochs"):
        assert resumed[key] == whole[key]
    states = [
        files.load(Path("runs", f"classify-{n}", "model.pt"), "saved model", 1)["models"] for n in ("whole", "half")
    ]
    for name, value in states[0]["noisy-kfac"].items():
        assert torch.equal(value, states[1]["noisy-kfac"][name]) if isinstance(value, torch.Tensor) else True
    one, other = (Path("runs", f"classify-{n}") for n in ("whole", "half"))
    assert (one / "metrics.jsonl").read_bytes() == (other / "metrics.jsonl").read_bytes()
    for name, array in loaded(one).items():
        np.testing.assert_array_equal(array, loaded(other)[name])
    again = json.loads(explore("classify", "--resume", "runs/classify-half", "--quiet", "--json").stdout)
    assert again["test"] == whole["test"]
    assert files.load(Path("runs/classify-half/checkpoint.pt"), "checkpoint", record.FORMAT)["state"]["finished"]


def test_images_without_any_for_testing(explore, tmp_path):
    whole = np.load(arrays(tmp_path / "own.npz"))
    np.savez(tmp_path / "some.npz", x=whole["x"], y=whole["y"], x_test=whole["test_x"])
    options = ("classify", "--images", tmp_path / "some.npz", "--net", "mlp", "-p", "net.hidden=8", "--epochs", 1)
    result = explore(*options)
    assert result.exit_code == 2 and "some has no test images. Use --validate 0.2 to" in result.stderr
    result = explore(*options, "--validate", 0.5, "--samples", 3, "--json", "--name", "arrays", "--augment", "crop")
    assert result.exit_code == 0, result.output
    assert "some.npz: x_test." in result.stderr
    assert "Augmentation of training images: crop; each counts as 10 examples." in result.stderr
    assert len(loaded(Path(json.loads(result.stdout)["run"]))["y"]) == len(whole["x"]) // 2
    np.savez(tmp_path / "some.npz", x=whole["x"], y=whole["y"], test_x=whole["test_x"])
    result = explore(*options)
    assert result.exit_code == 2 and "has x, y, test_x; it must have test_x and test_y, or neither" in result.stderr


@pytest.mark.usefixtures("drawn_in_full")
def test_images_of_ones_own_and_others(explore, tmp_path):
    own = arrays(tmp_path / "own.npz")
    np.savez("noise.npz", x=np.random.default_rng(1).integers(0, 256, (6, 8, 8), np.uint8))
    result = explore("classify", "--images", own, "--net", "mlp", "-p", "net.hidden=8", "--epochs", 2, "--samples", 3,
                     "--ood", "noise.npz", "--json", "--quiet", "--validate", 0.5)  # fmt: skip
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (
        0 <= found["test"]["auroc_entropy"] <= 1 and found["validation"] == 0.5 and found["ood"].endswith("noise.npz")
    )
    kept = loaded(Path(found["run"]))
    assert kept["other_probabilities"].shape == (6, 2) and len(kept["y"]) == 4
    for colour in ("C0", "C1"):
        assert min(shares(Path(found["run"], "others.png"), colour, panels=2)) > 0.05, colour
    lines = [json.loads(line) for line in Path(found["run"], "metrics.jsonl").read_text().splitlines()]
    last = {tag: value for line in lines if line["step"] == 2 for tag, value in line.items()}
    assert {name: last[f"test/{name}"] for name in found["test"]} == found["test"]
    arrays(own, 10)
    result = explore("classify", "--resume", found["run"])
    assert result.exit_code == 2 and "have changed since the run began" in result.stderr


def test_what_is_left_out_and_converted_of_others_is_said(explore, tmp_path):
    """And an augmented image, which counts for several, is one that was fitted to; none of them is square."""
    rng, photos = np.random.default_rng(1), tmp_path / "photos"
    photos.mkdir()
    x = rng.integers(0, 256, (30, 6, 9, 3), np.uint8)
    np.savez("own.npz", x=x[:20], y=np.arange(20) % 2, test_x=x[20:], test_y=np.arange(10) % 2)
    Image.fromarray(rng.integers(0, 256, (9, 6, 4), np.uint8), "RGBA").save(photos / "clear.png")
    (photos / "x.heic").write_text("")
    result = explore(
        "classify", "--images", "own.npz", "--net", "resnet18", "-p", "net.width=2", "--epochs", 1, "--samples", 2,
        "-p", "batch_size=10", "--augment", "crop", "--posterior", "vogn", "--ood", photos, "--name", "x",
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert f"distribution images: Ignored 1 file of {photos}: endings other than" in result.stderr
    assert "class folders" not in result.stderr and "Placed 1 image with transparency on white." in result.stderr
    run = package.load_run("runs/classify-x")
    assert run.about == "vogn; fitted to 20 examples, each counted as 10"
    kept = loaded(Path("runs/classify-x"))["probabilities"]
    np.savez("new.npz", x=x[20:])
    np.testing.assert_allclose(run.predict("new.npz").filter(like="p_").to_numpy(), kept, rtol=1e-4, atol=1e-6)


def test_a_network_of_bfloat16(classify):
    plain, other = classify("--name", "plain"), classify("--amp", "--name", "amp")
    assert other["alive"] and other["test"]["log_likelihood"] == pytest.approx(plain["test"]["log_likelihood"], rel=0.1)
    assert other["test"] != plain["test"]
    assert vars(package.load_run("runs/classify-amp").fitted.posterior.net)["amp"]


def test_others_that_cannot_be_had_are_said(explore, monkeypatch):
    """Where they were not asked for; else they are refused."""
    asked = explore(*TINY, "--train", 50, "--ood", "no-such-set")
    assert asked.exit_code == 2 and "no-such-set" in asked.stderr and not Path("runs").exists()
    asked = explore("classify", "--dataset", "no-such-set")
    assert asked.exit_code == 2 and "allowed: cifar10" in asked.stderr
    monkeypatch.setitem(experiment.PAIRS, "digits", "no-such-set")
    result = explore(*TINY, "--train", 50)
    assert result.exit_code == 0, result.output
    assert "Skipped the out-of-distribution test on no-such-set:" in result.stderr and "AUROC" not in result.stdout


def test_a_set_goes_before_a_folder_of_its_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("mnist").mkdir()
    Path("mine").mkdir()
    assert [experiment._place(ood) for ood in (None, "none", "mnist", "mine")] == [
        None,
        None,
        "mnist",
        f"{tmp_path}/mine",
    ]


@pytest.mark.parametrize(("beta", "left"), [(0.001, True), (0.5, False)])
def test_that_the_curvature_is_mostly_its_start_is_said(explore, beta, left):
    result = explore(*TINY, "-p", f"beta={beta}", "-p", "statistics_interval=1")
    assert (
        result.exit_code == 0 and ("% of the posterior's curvature is still its initial value" in result.stderr) == left
    )


@pytest.mark.parametrize(
    ("options", "idle"), [(["-p", "lr=1e-9"], True), (["--posterior", "map", "-p", "lr=0.01"], False)]
)
def test_that_hardly_anything_was_learnt_is_said(explore, options, idle):
    result = explore(*TINY, *options, "--epochs", 20)
    assert result.exit_code == 0 and ("the model learnt almost nothing: always" in result.stderr) == idle
    y = images.load("digits").test_y
    guess = f"{100 * (1 - np.bincount(y).max() / len(y)):.2f} %"
    assert (f"the most frequent class has an error of {guess}." in result.stderr) == idle


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", "batch_size=43"], None),
        (["-p", "batch_size=1"], "a batch of 1 example does not divide into 2 parts; take larger"),
        (["-p", "min_batches=16", "--train", "20"], "a batch of 1 example does not divide into 2 parts"),
        (["--test", "1"], "1 example cannot be divided among 2 processes"),
        (["--ood", "one.npz"], "1 example cannot be divided among 2 processes"),
    ],
)
def test_what_processes_cannot_divide_is_said(options, message, tmp_path, monkeypatch):
    """Before there is a run."""
    monkeypatch.chdir(tmp_path)
    np.savez("one.npz", x=np.zeros((1, 8, 8), np.uint8))
    asked = experiment.resolve(command.make_context("classify", [*TINY[1:], *options]).params)
    with parallel.within(parallel.World(2, 0, 1)):
        if message is None:
            notes = experiment.Experiment(asked, "cpu").notes  # batches of 43 and of 44
            assert "Each epoch skips 15 of 1437 images, because batches are not divisible by 2 processes." in notes
        else:
            with pytest.raises(InputError, match=message):
                experiment.Experiment(asked, "cpu")


def test_a_network_of_ones_own(explore, monkeypatch, tmp_path):
    code = "from torch import nn\n\n\ndef small(classes, size, units=4, act=None):\n"
    code += "    return nn.Sequential(nn.Flatten(), nn.Linear(size**2, units), nn.ReLU(), nn.Linear(units, classes))\n"
    (tmp_path / "mynet.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    options = ["--net", "mynet:small", "--epochs", 1, "--train", 50, "--json", "--quiet"]
    result = explore("classify", "--dataset", "digits", *options)
    assert result.exit_code == 0, result.output
    run = json.loads(result.stdout)["run"]
    refused = explore("classify", "--resume", run)
    assert refused.exit_code == 2 and "--trust mynet" in refused.stderr
    refused = explore("classify", "--dataset", "digits", *options, "-p", "net.act=relu")
    assert refused.exit_code == 2 and "act of mynet:small cannot be set; annotate it as int" in refused.stderr
    assert explore("classify", "--resume", run, "--trust", "mynet").exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--dataset", "nothing"], "nothing"),
        (["--net", "lenet6"], "lenet6"),
        (["--net", "lenet5"], "LeNet-5 takes images of 28 or 32 pixels a side, not 8"),
        (["--train", "5000"], "can be used to train"),
        (["--size", "32"], "--size, --grey and --stream apply to"),
        (["--no-stream"], "--size, --grey and --stream apply to"),
        (["-p", "net.depth=3"], "depth"),
        (["-p", "lr=fast"], "lr"),
        (["--posterior", "hmc"], "hmc supports only an nn.Sequential of "),
        (["--validate", "0.0001"], "--validate 0.0001 of 1437 training images selects none."),
        (["--warmup", "2"], "warm-up of 2 epochs, but training has 1. Use a shorter warm-up"),
        (["--resume", ""], "--resume is empty"),
        (["--images", ".", "--dataset", "digits"], "exclude each other"),
    ],
)
def test_what_is_refused(explore, options, message):
    result = explore("classify", "--dataset", "digits", "--net", "mlp", "--epochs", 1, *options)
    assert result.exit_code == 2 and message in result.stderr and "Traceback" not in result.stderr


def test_an_augmented_image_counts_for_ten(explore):
    """If nothing else is said, and the posterior weighs images against a prior."""

    def worth(posterior, augment, *options):
        given = ["--dataset", "digits", "--net", "mlp", "--posterior", posterior, "--augment", augment, *options]
        asked = experiment.resolve(command.make_context("classify", given).params)
        return asked.load()[1].posterior_settings.get("augmentation")

    assert worth("noisy-kfac", "none") == 1 and worth("noisy-kfac", "crop") == worth("bbb", "crop") == 10
    assert worth("vogn", "none", "--preset", "paper-image") == 1
    assert worth("noisy-kfac", "crop", "-p", "augmentation=3") == 3
    assert worth("ensemble", "crop") is None


def test_images_of_sixteen_bits_are_those_of_their_upper_eight(explore, tmp_path):
    """In training, in predictions, and as images of another kind; other values are refused by the file's name."""
    rng = np.random.default_rng(0)
    for i in range(16):
        deep = (rng.integers(0, 20000, (6, 6)) + 40000 * (i % 2)).astype(np.uint16)
        for kind, x in (("deep", deep), ("plain", (deep >> 8).astype(np.uint8))):
            path = tmp_path / kind / ("train" if i < 12 else "test") / "ab"[i % 2] / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(path)
    made = []
    for kind, other in (("deep", "plain"), ("plain", "deep")):
        options = ["--net", "mlp", "-p", "net.hidden=8", "--epochs", 2, "--ood", tmp_path / other / "test", "--json"]
        result = explore("classify", "--images", tmp_path / kind, "--grey", *options)
        assert result.exit_code == 0, result.output
        made.append(Path(json.loads(result.stdout)["run"]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TableWarning)  # that they are converted
            found = package.load_run(made[-1]).predict(tmp_path / other / "test").filter(like="p_")
        np.testing.assert_allclose(found.to_numpy(), loaded(made[-1])["probabilities"], rtol=1e-4, atol=1e-6)
    for one, other in zip(*(loaded(run).values() for run in made), strict=True):
        np.testing.assert_array_equal(one, other)
    Image.fromarray(np.zeros((6, 6), np.float32)).save("float.tif")
    result = explore("predict", made[0], "float.tif")
    assert result.exit_code == 2 and "float.tif has an unsupported pixel format" in result.stderr


def test_arrays_to_predict_are_refused_as_they_are_in_the_file(explore, tmp_path):
    run = explore("classify", "--images", arrays(tmp_path / "own.npz"), "--net", "mlp", "--epochs", 1, "--json")
    np.savez("first.npz", x=np.zeros((5, 1, 8, 8), np.uint8))
    result = explore("predict", json.loads(run.stdout)["run"], "first.npz")
    assert result.exit_code == 2
    assert "x of first.npz is uint8 [5, 1, 8, 8]; it must be uint8 [images, height, width]" in result.stderr


def test_what_is_left_out_of_a_folder_is_said(explore, tmp_path):
    for part, name in ((p, n) for p in ("train", "test") for n in ("a", "b")):
        folder = tmp_path / "mine" / part / name
        folder.mkdir(parents=True)
        for i in range(3):
            Image.fromarray(np.full((8, 8), 200 if name == "a" else 20, np.uint8)).save(folder / f"{i}.png")
    (tmp_path / "mine" / "train" / "a" / "notes.txt").write_text("mine")
    options = ["--images", tmp_path / "mine", "--net", "mlp", "-p", "net.hidden=4", "--epochs", 1, "--samples", 2]
    found = explore("classify", *options)
    assert found.exit_code == 0, found.output
    assert f"Ignored 1 file of {tmp_path / 'mine'}: endings other than" in found.stderr
