"""Cluster client models by the direction of their changes: exact k-means on normalized deltas, without tiny clusters.

Deltas are compared by direction, because raw deltas are dominated by the few clients with the most steps. k-means needs
only inner products, so it runs on the Gram matrix of the deltas, which embeds them exactly in as many dimensions as
there are clients, whatever the size of the network.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedbasis.tensors.averaging import MakeMean
from fedbasis.tensors.blocks import Layout
from fedbasis.tensors.params import StreamingMean, Tensors, columns, inner_products
from fedbasis.tensors.seeding import seed_for
from pflbed.errors import InputError


def cluster_directions(deltas: Tensor, clusters: int, seed: int, tries: int = 8) -> NDArray[np.int64]:
    """Return the cluster number of every row of ``deltas``, clustered by direction."""
    return cluster_products(inner_products([deltas.double()], len(deltas)), clusters, seed, tries)


def cluster_products(products: Tensor, clusters: int, seed: int, tries: int = 8) -> NDArray[np.int64]:
    """Do the same from the inner products of the rows; every cluster has at least two rows if that is possible.

    A clustering with a cluster of one is repeated with another initialization; if all ``tries`` have one, the nearer
    half of the largest cluster is moved to the smallest.
    """
    count = len(products)
    if count < clusters:
        raise InputError(
            f"Making {clusters} clusters needs at least {clusters} client models in the last round of the warm start, "
            f"but only {count} were received; make fewer clusters or sample more clients."
        )
    lengths = products.diagonal().sqrt().clamp_min(1e-12)
    return _cluster(_embed((products / lengths[:, None] / lengths).numpy()), clusters, seed, tries)


def cluster_models(
    layout: Layout,
    starts: Sequence[Tensors],
    models: Sequence[Tensors],
    weights: Sequence[float],
    clusters: int,
    seed: int,
    by_block: bool,
    mean: MakeMean = StreamingMean,
) -> list[Tensors]:
    """Cluster models by how they moved from their starts, and return the weighted mean model of every cluster.

    Args:
        layout: The network's layout by blocks.
        starts: The model that each client received; of one round, the same object for all.
        models: The clients' models.
        weights: Their weights.
        clusters: The number of clusters.
        seed: The seed of the run.
        by_block: Whether to cluster every block on its own: the combinations of FedBasis are by block as well, so a
            basis need not hold the same clients in all blocks (early blocks tend to group by domain, the classifier by
            labels).
        mean: Makes the mean of a cluster.
    """
    products = []
    distinct = {id(start): start for start in starts}
    origin = [list(distinct).index(id(start)) for start in starts]
    for block in range(len(layout.blocks)):
        names = [entry.name for entry in layout.select(True) if entry.block == block]
        many = columns([*distinct.values(), *models], names)
        moved = (rows[len(distinct) :] - rows[origin] for rows in many)
        products.append(inner_products(moved, len(models)))
    if by_block:
        labels = [cluster_products(product, clusters, seed) for product in products]
    else:
        labels = [cluster_products(torch.stack(products).sum(0), clusters, seed)] * len(products)
    means = [mean() for _ in range(clusters * len(products))]
    for index, model in enumerate(models):
        for block, label in enumerate(labels):
            mine = {entry.name: model[entry.name] for entry in layout.entries if entry.block == block}
            means[block * clusters + int(label[index])].add(mine, weights[index])
    parts = [mean.result() for mean in means]
    return [{name: t for part in parts[k::clusters] for name, t in part.items()} for k in range(clusters)]


def _embed(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    return np.asarray(vectors * np.sqrt(np.clip(values, 0, None)))


def _cluster(points: NDArray[np.float64], clusters: int, seed: int, tries: int) -> NDArray[np.int64]:
    from sklearn.cluster import KMeans

    least = 2 if len(points) >= 2 * clusters else 1
    best: NDArray[np.int64] | None = None
    for attempt in range(tries):
        start = seed_for(seed, "cluster directions", attempt) % 2**32
        with np.errstate(all="ignore"):
            labels = np.asarray(KMeans(clusters, n_init=4, random_state=start).fit_predict(points), dtype=np.int64)
        smallest = _sizes(labels, clusters).min()
        if smallest >= least:
            return labels
        if best is None or smallest > _sizes(best, clusters).min():
            best = labels
    assert best is not None  # tries is at least one
    return _split_largest(points, best, clusters, least)


def _split_largest(
    points: NDArray[np.float64], labels: NDArray[np.int64], clusters: int, least: int
) -> NDArray[np.int64]:
    """Move the half of the largest cluster that is nearest to the smallest one to it, until all are large enough."""
    labels = labels.copy()
    while _sizes(labels, clusters).min() < least:
        sizes = _sizes(labels, clusters)
        small, large = int(sizes.argmin()), int(sizes.argmax())
        members = np.flatnonzero(labels == large)
        center = points[labels == small].mean(axis=0) if sizes[small] else points[members[0]]
        distance = np.linalg.norm(points[members] - center, axis=1)
        labels[members[np.argsort(distance, kind="stable")[: sizes[large] // 2]]] = small
    return labels


def _sizes(labels: NDArray[np.int64], clusters: int) -> NDArray[np.int64]:
    return np.bincount(labels, minlength=clusters)
