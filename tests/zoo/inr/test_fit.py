"""The laws of fitting with either engine: exact gradients, Adam as torch has it, independence of everything else."""

import math

import pytest
import torch
from torch import Tensor

from scalegmn.bench.inr import bench_zoo, fit_one_at_a_time
from scalegmn.errors import ScaleGMNError
from scalegmn.native import library
from scalegmn.zoo.images.collections import load_images
from scalegmn.zoo.inr.compiled import SOURCE
from scalegmn.zoo.inr.conventions import Fit, coordinates, inr
from scalegmn.zoo.inr.fit import EngineName, fit_inrs
from scalegmn.zoo.inr.plain import group_size

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(params=["compiled", "torch"])
def engine(request: pytest.FixtureRequest) -> EngineName:
    if request.param == "compiled" and library.load(SOURCE) is None:
        pytest.skip("no compiler")
    name: EngineName = request.param
    return name


def random_images(count: int, points: int, channels: int = 1, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.rand(count, points, channels, generator=torch.Generator().manual_seed(1), dtype=dtype)


def test_coordinates_match_the_published_conventions() -> None:
    x, y = coordinates(3, 4, "dws").view(3, 4, 2).unbind(-1)
    assert torch.equal(x[0], torch.linspace(-1, 1, 4))
    assert torch.equal(y[:, 0], torch.linspace(-1, 1, 3))
    assert torch.equal(coordinates(3, 4, "nfn"), coordinates(3, 4, "dws").flip(1))


@pytest.mark.parametrize("convention", ["dws", "nfn"])
def test_initial_distributions(convention: str) -> None:
    shape = inr(1, convention_name=convention)
    rows = shape.initial(3, range(400))
    w1, b1, w2, b2, w3, b3 = rows.split([64, 32, 1024, 32, 32, 1], dim=1)
    siren = math.sqrt(6 / 32) / 30
    default = 1 / math.sqrt(32)
    if convention == "dws":
        bounds = [(w1, math.sqrt(6 / 2) / 30), (w2, siren), (w3, default), (b3, default)]
        assert not b1.any()
        assert not b2.any()
    else:
        first_bias = 1 / math.sqrt(2)
        bounds = [(w1, 1 / 2), (w2, siren), (w3, siren), (b1, first_bias), (b2, default), (b3, default)]
    for values, bound in bounds:
        assert values.abs().max() <= bound
        assert values.abs().max() > 0.98 * bound
        assert abs(float(values.mean())) < 0.1 * bound
        # The standard deviation of a uniform distribution.
        assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.08)


def test_engine_follows_the_plain_ways(engine: EngineName) -> None:
    shape, points = inr(1), coordinates(28, 28)
    images = random_images(3, 784)
    ours = fit_inrs(images, points, Fit(steps=15), engine=engine).parameters
    torch.testing.assert_close(ours, fit_one_at_a_time(shape, points, images, 15), rtol=0, atol=2e-6)
    # Negative control: another learning rate is another trajectory.
    other = fit_one_at_a_time(shape, points, images, 15, lr=2e-3)
    assert (ours - other).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("side", "channels", "hidden", "activation", "convention"),
    [(28, 1, (32, 32), "sine", "dws"), (8, 1, (32, 32), "sine", "nfn"), (12, 3, (16, 16), "relu", "dws")],
)
def test_a_network_depends_only_on_its_image_and_index(
    side: int, channels: int, hidden: tuple[int, ...], activation: str, convention: str, engine: EngineName
) -> None:
    points = coordinates(side, side, convention)
    images = random_images(19, side * side, channels)

    def fit(rows: list[int], threads: int, psnr: float | None = None) -> Tensor:
        return fit_inrs(
            images[rows],
            points,
            Fit(hidden=hidden, activation=activation, convention=convention, steps=21, psnr=psnr),
            indices=rows,
            threads=threads,
            engine=engine,
        ).parameters

    everything = list(range(19))
    for psnr in (None, 9.0):
        whole = fit(everything, 1, psnr)
        assert torch.equal(whole, fit(everything, 2, psnr))
        for rows in ([4], [18, 2], [0, 1, 2], everything[:17]):
            assert torch.equal(whole[rows], fit(rows, 1, psnr))
    assert not torch.equal(fit([0], 1), fit_inrs(images[:1], points, Fit(steps=21), seed=1).parameters)


def test_sizes_that_fit_no_vector_depend_on_their_neighbours_by_rounding_only() -> None:
    points, images = coordinates(9, 9), random_images(19, 81, 3)
    fit = Fit(hidden=(7, 6), activation="relu", steps=21)
    whole = fit_inrs(images, points, fit, threads=1, engine="torch").parameters
    assert torch.equal(whole, fit_inrs(images, points, fit, threads=2, engine="torch").parameters)
    alone = fit_inrs(images[[4]], points, fit, indices=[4], engine="torch").parameters[0]
    torch.testing.assert_close(alone, whole[4], rtol=0, atol=1e-5)


def test_threads_are_left_as_they_were() -> None:
    before = torch.get_num_threads()
    fit_inrs(random_images(300, 16), coordinates(4, 4), Fit(hidden=(4,), steps=1), threads=2)
    assert torch.get_num_threads() == before


def test_reported_psnr_is_that_of_the_rendering(engine: EngineName) -> None:
    for convention in ("dws", "nfn"):
        points = coordinates(12, 10, convention)
        images = random_images(5, 120, 3)
        result = fit_inrs(images, points, Fit(convention=convention, steps=30), engine=engine)
        shape = inr(3, convention_name=convention)
        error = (shape.render(result.parameters, points) - images).square().mean(dim=(1, 2))
        torch.testing.assert_close(result.psnr, -10 * torch.log10(error), rtol=1e-4, atol=1e-4)


def test_a_target_stops_each_network_at_its_time(engine: EngineName) -> None:
    points = coordinates(8, 8)
    digits = torch.from_numpy(load_images("digits").pixels[:12] / 255.0).float().view(12, 64, 1)
    result = fit_inrs(digits, points, Fit(psnr=25.0), engine=engine)
    assert (result.psnr >= 25).all()
    assert (result.steps % 10 == 0).all()
    assert len(result.steps.unique()) > 1
    row = int(result.steps.argmax())
    alone = fit_inrs(digits[[row]], points, Fit(steps=int(result.steps[row])), indices=[row], engine=engine)
    assert torch.equal(alone.parameters[0], result.parameters[row])
    capped = fit_inrs(digits, points, Fit(psnr=200.0, steps=20), engine=engine)
    assert capped.steps.tolist() == [20] * 12


@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_other_activations_learn(activation: str, engine: EngineName) -> None:
    points = coordinates(8, 8)
    digits = torch.from_numpy(load_images("digits").pixels[:6] / 255.0).float().view(6, 64, 1)
    start = fit_inrs(digits, points, Fit(activation=activation, steps=0), engine=engine)
    end = fit_inrs(digits, points, Fit(activation=activation), engine=engine)
    assert (end.psnr > start.psnr + 2).all()


def test_default_digits_reach_forty_five_decibels(engine: EngineName) -> None:
    digits = torch.from_numpy(load_images("digits").pixels[::30] / 255.0).float().view(-1, 64, 1)
    assert float(fit_inrs(digits, coordinates(8, 8), engine=engine).psnr.mean()) >= 45


def test_sizes() -> None:
    assert Fit().limit(784) == Fit().limit(1024) == 1000
    assert Fit(psnr=30.0).limit(784) == 10_000
    assert group_size(inr(1), 784) == 16
    assert group_size(inr(3, hidden=(512, 512)), 4096) == 8


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"activation": "gelu"}, "sine, relu, tanh"),
        ({"convention": "siren"}, "dws, nfn"),
        ({"hidden": ()}, "hidden layer"),
        ({"activation": "relu", "w0": 30.0}, "only sine"),
        ({"w0": -1.0}, "positive"),
        ({"lr": 0.0}, "lr > 0"),
        ({"steps": -1}, "steps >= 0"),
        ({"steps": 10**30}, "at most 10000000"),
        ({"lr": math.nan}, "finite"),
        ({"hidden": (10**9,)}, "up to 4096 neurons"),
        ({"hidden": (1,) * 99}, "up to 32 layers"),
    ],
)
def test_bad_fits_are_refused_in_one_line(change: dict[str, object], match: str) -> None:
    with pytest.raises(ScaleGMNError, match=match) as caught:
        Fit(**change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"threads": 0}, "threads >= 1"),
        ({"indices": [1, 2, 3]}, "one per image, 2"),
        ({"seed": -1}, "at least 0"),
        ({"seed": 2**64}, "seed: "),
    ],
)
def test_bad_options_are_refused_in_one_line(change: dict[str, object], match: str) -> None:
    with pytest.raises(ScaleGMNError, match=match) as caught:
        fit_inrs(random_images(2, 16), coordinates(4, 4), **change)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("targets", "match"),
    [
        (torch.zeros(2, 16), r"\(B, N, C\)"),
        (torch.zeros(2, 16, 1, dtype=torch.uint8), "floating point"),
        (torch.zeros(2, 9, 1), r"\(9, 2\)"),
        (torch.full((2, 16, 1), torch.nan), "finite"),
        (torch.zeros(0, 16, 1), r"\(B, N, C\)"),
    ],
)
def test_bad_images_are_refused(targets: Tensor, match: str) -> None:
    with pytest.raises(ScaleGMNError, match=match):
        fit_inrs(targets, coordinates(4, 4))


def test_bench_reports_all_ways() -> None:
    result = bench_zoo(0.01, batches_per_second=12.0)
    keys = ["one_at_a_time_ms", "batched_autograd_ms", "ours_ms", "ratio_one", "ratio_batched", "batches_per_second"]
    assert list(result) == keys
    assert min(result.values()) > 0
    assert result["ratio_one"] == pytest.approx(result["one_at_a_time_ms"] / result["ours_ms"])
    assert "batches_per_second" not in bench_zoo(0.01)
