"""The tables: which methods, on which datasets, and the published results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import ScaleGMNError
from .experiments import DATASETS, METHODS


@dataclass(frozen=True)
class ResultTable:
    """Methods on datasets.

    Arguments:
        name: As on the command line.
        title: As a heading.
        datasets: Columns.
        methods: Rows.
        paper: By dataset and method, published mean and standard deviation (None if none was published), in the
            paper's tables and text, and of NG-T and ProbeGen in those of their authors.
        figures: Zoos whose distributions are drawn instead.
        transformed: Whether the values are those on permuted and rescaled copies of the test networks.
        tuned: The dataset on which settings are tried, for methods that have trials.
    """

    name: str
    title: str
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    paper: Mapping[str, Mapping[str, tuple[float, float | None]]] = field(default_factory=dict)
    figures: tuple[str, ...] = ()
    transformed: bool = False
    tuned: str = ""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_CLASSIFIERS = _names(
    "mlp inr2vec statnn gmn dws nfn-np nfn-hnp nft ng-gnn ng-gnn-64 ng-gnn-64-moved ng-t ng-t-64 "
    "monomial-nfn probegen probegen-moved scalegmn scalegmn-b gmn-ours gmn-ours-moved scalegmn-ours "
    "scalegmn-ours-moved probegen-ours-moved scalegmn-128-moved scalegmn-b-128-moved"
)
_REGRESSORS = _names(
    "statnn gmn nfn-np nfn-hnp ng-gnn ng-gnn-64 ng-t probegen scalegmn scalegmn-b scalegmn-64 "
    "scalegmn-b-64 nfn-hnp-ours ng-gnn-ours probegen-ours scalegmn-ours scalegmn-b-ours"
)
_EDITORS = _names(
    "mlp gmn dws nfn-np nfn-hnp ng-gnn ng-gnn-64 ng-t-64 scalegmn scalegmn-b scalegmn-b-64 scalegmn-b-4 "
    "ng-gnn-64-ours scalegmn-b-ours scalegmn-b-64-ours scalegmn-b-64-8-ours"
)
_PERMUTATIONS = ("dws", "nfn-np", "nfn-hnp", "ng-gnn")
_CLASSES = ("mnist", "fashion-mnist", "cifar10", "cifar10-views")
_CNNS = tuple(f"{images}-gs-{kind}" for kind in ("relu", "tanh", "both") for images in ("cifar10", "svhn"))


def _paper(methods: tuple[str, ...], **columns: str) -> dict[str, dict[str, tuple[float, float | None]]]:
    """Published values, column by column, as mean±deviation or mean alone; a dash if there is none."""
    found: dict[str, dict[str, tuple[float, float | None]]] = {}
    for dataset, values in columns.items():
        pairs = [(m, v.partition("±")) for m, v in zip(methods, values.split(), strict=True) if v != "-"]
        found[dataset.replace("_", "-")] = {
            m: (float(mean), float(spread) if spread else None) for m, (mean, _, spread) in pairs
        }
    return found


TABLES = {
    table.name: table
    for table in (
        ResultTable(
            "inr-classification",
            "Classifying implicit representations (Table 1): test accuracy in percent",
            _CLASSES,
            _CLASSIFIERS,
            _paper(
                ("mlp", "inr2vec", *_PERMUTATIONS, "ng-gnn-64", "ng-t-64", "probegen", "scalegmn", "scalegmn-b"),
                mnist="17.55±0.01 23.69±0.10 85.71±0.57 78.50±0.23 79.11±0.84 91.40±0.60 94.7±0.3 97.3±0.2 98.4 "
                "96.57±0.10 96.59±0.24",
                fashion_mnist="19.91±0.47 22.33±0.41 67.06±0.29 68.19±0.28 68.94±0.64 68.00±0.20 74.2±0.4 74.8±0.9 "
                "87.7 80.46±0.32 80.78±0.16",
                cifar10="11.38±0.34 - 34.45±0.42 33.41±0.01 28.64±0.07 36.04±0.44 - - - 36.43±0.41 38.82±0.10",
                cifar10_views="16.90±0.25 - 41.27±0.026 46.60±0.07 44.10±0.47 45.70±0.20 - - - 56.62±0.24 56.95±0.57",
            ),
            tuned="mnist",
        ),
        ResultTable(
            "generalisation",
            "Predicting the accuracy of CNNs (Table 2): Kendall's tau",
            _CNNS,
            _REGRESSORS,
            _paper(
                ("statnn", "nfn-np", "nfn-hnp", "ng-gnn", "ng-t", "scalegmn", "scalegmn-b"),
                cifar10_gs_relu="0.9140±0.001 0.9190±0.010 0.9270±0.001 0.9010±0.060 - 0.9276±0.002 0.9282±0.003",
                svhn_gs_relu="0.8463±0.004 0.8586±0.003 0.8636±0.002 0.8549±0.002 - 0.8689±0.003 0.8651±0.001",
                cifar10_gs_tanh="0.9140±0.000 0.9251±0.001 0.9339±0.000 0.9340±0.001 - 0.9418±0.005 0.9425±0.004",
                svhn_gs_tanh="0.8440±0.001 0.8580±0.004 0.8586±0.004 0.8620±0.003 - 0.8736±0.003 0.8655±0.004",
                cifar10_gs_both="0.915±0.002 0.922±0.001 0.934±0.001 0.931±0.002 0.935 0.941±0.006 0.941±0.000",
            ),
            tuned="cifar10-gs-both",
        ),
        ResultTable(
            "editing",
            "Dilating MNIST by editing weights (Table 3): mean squared error x 100",
            ("dilation",),
            _EDITORS,
            _paper(
                ("mlp", "dws", "nfn-np", "nfn-hnp", "ng-gnn", "ng-gnn-64", "ng-t-64", "scalegmn", "scalegmn-b"),
                dilation="5.35±0.00 2.58±0.00 2.55±0.00 2.65±0.01 2.38±0.02 2.06±0.01 1.75 2.56±0.03 1.89±0.00",
            ),
            tuned="dilation",
        ),
        ResultTable(
            "augmentation",
            "Scaling augmentation instead of scale equivariance (Table 4)",
            ("fashion-mnist", "cifar10-gs-relu"),
            (*(name for m in _PERMUTATIONS for name in (m, f"{m}-augmented")), "scalegmn", "scalegmn-b"),
            _paper(
                (*(name for m in _PERMUTATIONS for name in (m, f"{m}-augmented")), "scalegmn", "scalegmn-b"),
                fashion_mnist="67.06±0.29 71.42±0.45 68.19±0.28 70.34±0.13 68.94±0.64 70.24±0.47 68.0±0.20 72.01±1.4 "
                "80.46±0.32 80.78±0.16",
                cifar10_gs_relu="- - 0.9190±0.010 0.8474±0.01 0.9270±0.001 0.8906±0.01 0.9010±0.060 0.8855±0.02 "
                "0.9276±0.002 0.9282±0.003",
            ),
        ),
        ResultTable(
            "probes",
            "Probes: test accuracy in percent",
            ("mnist", "fashion-mnist", "cifar10"),
            _names(
                "ng-gnn ng-gnn-64 ng-gnn-64-moved probegen probegen-moved scalegmn scalegmn-128 scalegmn-128-moved "
                "scalegmn-b-128-moved"
            ),
        ),
        ResultTable(
            "learning-curve",
            "Accuracy against the number of training networks: test accuracy in percent",
            ("mnist", "fashion-mnist", "cifar10"),
            (*(f"scalegmn-128-moved-{count}" for count in ("1k", "3k", "10k", "30k")), "scalegmn-128-moved"),
        ),
        ResultTable(
            "dual",
            "Two ways back through a ReLU network: the dual stream (ScaleGMN-B) and the paper's reciprocal",
            ("cifar10-gs-relu", "svhn-gs-relu"),
            ("scalegmn", "scalegmn-b", "scalegmn-reciprocal"),
        ),
        ResultTable(
            "phase",
            "Canonical phases of sine neurons, on and off: test accuracy in percent",
            ("mnist", "fashion-mnist", "cifar10"),
            ("scalegmn", "scalegmn-no-phase"),
        ),
        ResultTable(
            "symmetries",
            "The same test networks with their hidden neurons permuted and rescaled at random: before and after",
            ("mnist", "cifar10-gs-relu", "svhn-gs-relu", "cifar10-gs-both", "svhn-gs-both"),
            ("statnn", "gmn", "dws", "nfn-np", "nfn-hnp", "ng-gnn", "scalegmn", "scalegmn-b"),
            transformed=True,
        ),
        ResultTable(
            "distributions",
            "Norms and signs of the weights in the zoos (the paper's figures)",
            (),
            (),
            figures=("mnist", "cifar10-gs-relu", "cifar10-gs-tanh"),
        ),
    )
}


def table(name: str) -> ResultTable:
    """A table by its name."""
    if name not in TABLES:
        raise ScaleGMNError(f"table: expected one of {', '.join(TABLES)}, got {name!r}")
    return TABLES[name]


def chosen(given: str | None, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Some of the names, in their order; all if none are given.

    >>> chosen("b,a", ("a", "b", "c"), "methods")
    ('a', 'b')
    """
    if given is None:
        return known
    names = given.split(",")
    wrong = [name for name in names if name not in known]
    if wrong:
        raise ScaleGMNError(f"{what}: expected some of {','.join(known)}; got {wrong[0]!r}")
    return tuple(name for name in known if name in names)


assert all(m in METHODS for t in TABLES.values() for m in t.methods)
assert all(d in DATASETS for t in TABLES.values() for d in t.datasets)
