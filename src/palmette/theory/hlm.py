"""The hierarchical linear model (5.1) and everything that can be said of it in closed form.

A centre for everybody, one per cluster, one parameter per client, and noisy linear observations of it:

    centre_i ~ N(centre, s_c I),   theta_ij ~ N(centre_i, s_d I),   y_ij = X_ij theta_ij + N(0, s_e I).

Clients are one axis, cluster by cluster; all clients have m observations, so everything is a few batched products.
`exact` is the minimiser of (5.2) that Async-L2GD seeks, `solve` the same for clients of any sizes; `marginal_gls` the estimator
of Proposition 5.3, which equals it when the variances are known; `orthonormal` the form of appendix A.10 for designs with
``X'X = beta I``; `james_stein` the biased estimator of Proposition 5.4.

Boxiang Lyu, Filip Hanzely, Mladen Kolar: Personalized Federated Learning with Multiple Known Clusters, section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from palmette.address import numpy_generator
from palmette.errors import BadInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LAMBDAS = tuple(np.linspace(0.01, 2, 20).tolist())
"""The paper's grid for the pull of the single-cluster estimator."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Data drawn from the model.

    Attributes:
        x: Designs ``(clients, m, d)``.
        y: Observations ``(clients, m)``.
        cluster: The cluster of each client, ascending.
        truth: The clients' true parameters ``(clients, d)``.
        spread: Variances ``(s_c, s_d, s_e)`` of centres, clients and noise.
    """

    x: Floats
    y: Floats
    cluster: Ints
    truth: Floats
    spread: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def gram(self) -> Floats:
        """``X'X`` of every client."""
        return np.asarray(self.x.swapaxes(1, 2) @ self.x)

    @property
    def moment(self) -> Floats:
        """``X'y`` of every client."""
        return np.asarray(np.einsum("nmd,nm->nd", self.x, self.y))

    def distances(self, estimate: Floats) -> Floats:
        """Return how far each client's estimate is from the truth (not squared, as the paper's numbers are)."""
        return np.asarray(np.linalg.norm(estimate - self.truth, axis=1), dtype=np.float64)


def draw(
    sizes: Sequence[int] = (20,) * 20,
    *,
    samples: int,
    dimension: int = 20,
    seed: int = 0,
    spread: tuple[float, float, float] = (1.0, 1.0, 1.0),
    orthonormal: float | None = None,
) -> Sample:
    """Draw from the model, with its centre at zero.

    Args:
        sizes: Clients of each cluster.
        samples: Observations per client (m).
        dimension: Width of the parameters (d).
        seed: Everything drawn depends on it alone.
        spread: Variances of centres, clients and noise.
        orthonormal: Make designs with ``X'X = beta I`` for this beta; needs m >= d.
    """
    if min(sizes, default=0) < 1 or samples < 1 or dimension < 1 or min(spread) <= 0:
        raise BadInput("clusters, samples, dimension and variances must all be positive")
    generator = numpy_generator(seed, "hierarchical linear model", samples)
    s_c, s_d, s_e = (float(np.sqrt(value)) for value in spread)
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    centre = s_c * generator.normal(size=(len(sizes), dimension))
    truth = centre[cluster] + s_d * generator.normal(size=(len(cluster), dimension))
    x = generator.normal(size=(len(cluster), samples, dimension))
    if orthonormal is not None:
        if samples < dimension:
            raise BadInput(f"an orthonormal design needs at least {dimension} samples per client, not {samples}")
        x = np.sqrt(orthonormal) * np.linalg.qr(x)[0]
    y = np.einsum("nmd,nd->nm", x, truth) + s_e * generator.normal(size=(len(cluster), samples))
    return Sample(x, y, cluster, truth, spread)


def single_model(sample: Sample) -> Floats:
    """Fit one model for all clients."""
    everywhere = np.linalg.pinv(sample.gram.sum(0), hermitian=True) @ sample.moment.sum(0)
    return np.broadcast_to(everywhere, sample.truth.shape).copy()


def local(sample: Sample) -> Floats:
    """Fit every client by itself; the shortest solution where there are fewer samples than parameters."""
    inverse = np.linalg.pinv(sample.gram, hermitian=True)
    return np.asarray(np.einsum("nde,ne->nd", inverse, sample.moment))


def single_cluster(sample: Sample, pull: float) -> Floats:
    """Fit clients drawn with one pull to one common mean, whatever their cluster."""
    return _drawn_together(*np.linalg.eigh(sample.gram), sample.moment, pull)


def _drawn_together(values: Floats, vectors: Floats, moment: Floats, pull: float) -> Floats:
    """Minimise with one pull to the common mean, given each client's ``X'X`` as eigenvalues and eigenvectors."""
    inverse = 1 / (values + pull)

    def solve(right: Floats) -> Floats:
        turned = np.einsum("nde,nd->ne", vectors, right)
        return np.asarray(np.einsum("nde,ne->nd", vectors, inverse * turned))

    half = (vectors * np.sqrt(inverse)[:, None]).transpose(1, 0, 2).reshape(vectors.shape[1], -1)
    mean = np.linalg.solve(np.eye(len(half)) - pull / len(moment) * half @ half.T, solve(moment).mean(0))
    return solve(moment + pull * mean)


def choose_pull(sample: Sample, pulls: Sequence[float] = LAMBDAS, folds: int = 5) -> float:
    """Choose the pull of `single_cluster` by cross-validation over each client's observations.

    With a single observation per client nothing can be held out and the middle of the grid is taken.
    """
    m = sample.x.shape[1]
    if m < 2:
        return float(pulls[len(pulls) // 2])
    error = np.zeros(len(pulls))
    for held in np.array_split(np.arange(m), min(folds, m)):
        rest = np.delete(np.arange(m), held)
        part = Sample(sample.x[:, rest], sample.y[:, rest], sample.cluster, sample.truth, sample.spread)
        (values, vectors), moment = np.linalg.eigh(part.gram), part.moment
        for k, pull in enumerate(pulls):
            guess = np.einsum("nmd,nd->nm", sample.x[:, held], _drawn_together(values, vectors, moment, pull))
            error[k] += np.square(guess - sample.y[:, held]).sum()
    return float(pulls[int(error.argmin())])


def exact(sample: Sample) -> tuple[Floats, Floats, Floats]:
    """Solve (5.2) directly with the pulls of Theorem 5.1: return the clients', the clusters' and the common parameters."""
    return solve(sample.gram, sample.moment, sample.cluster, sample.spread)


def solve(
    gram: Floats, moment: Floats, cluster: Ints, spread: tuple[float, float, float]
) -> tuple[Floats, Floats, Floats]:
    """Solve (5.2) for clients with any numbers of observations: return their, the clusters' and the common parameters.

    Args:
        gram: ``X'X`` of every client ``(clients, d, d)``.
        moment: ``X'y`` of every client ``(clients, d)``.
        cluster: The cluster of each client, ascending.
        spread: Variances ``(s_c, s_d, s_e)``. With an infinite s_c nothing draws clusters together; what is returned as common
            is then the mean over all clients of their cluster's parameters.
    """
    s_c, s_d, s_e = spread
    c, m, eye = 1 / s_d, 1 / s_c, np.eye(moment.shape[1])
    inverse, moment = np.linalg.inv(gram / s_e + c * eye), moment / s_e
    first = np.searchsorted(cluster, np.unique(cluster))
    sizes = np.diff([*first, len(cluster)])
    left = (m + c * sizes)[:, None, None] * eye - c**2 * np.add.reduceat(inverse, first)
    right = c * np.add.reduceat(np.einsum("nde,ne->nd", inverse, moment), first)
    within = np.linalg.inv(left)
    a, b = m * within, np.einsum("kde,ke->kd", within, right)
    common = np.linalg.solve(len(sizes) * m * eye - m * a.sum(0), m * b.sum(0)) if m else sizes @ b / sizes.sum()
    clusters = a @ common + b
    clients = np.einsum("nde,ne->nd", inverse, moment + c * clusters[cluster])
    return np.asarray(clients), np.asarray(clusters), np.asarray(common)


def marginal_gls(sample: Sample, client: int) -> Floats:
    """Estimate one client by generalised least squares over everybody's data (Proposition 5.3, built as in A.11).

    Every observation is written as ``X_i theta_1`` plus an error: with u the client's own deviation from its cluster's
    centre and v that centre's from the common one, ``-X_i (u_1 - u_i)`` inside the client's cluster and
    ``-X_i (u_1 + v_1 - v_j - u_i)`` in others, plus noise. The error's covariance is inverted as it is.
    """
    s_c, s_d, s_e = sample.spread
    n, m, d = sample.x.shape
    own = sample.cluster[client]
    # Coefficients of the deviations (u of every client, then v of every cluster) in each client's error.
    u = np.eye(n)
    u[:, client] -= 1
    v = np.eye(int(sample.cluster.max()) + 1)[sample.cluster]
    v[:, own] -= 1
    between = s_d * u @ u.T + s_c * v @ v.T
    flat = sample.x.reshape(n * m, d)
    covariance = np.repeat(np.repeat(between, m, 0), m, 1) * (flat @ flat.T) + s_e * np.eye(n * m)
    weighted = np.linalg.solve(covariance, np.column_stack([flat, sample.y.reshape(-1)]))
    return np.asarray(np.linalg.solve(flat.T @ weighted[:, :d], flat.T @ weighted[:, d]))


def orthonormal(sample: Sample, beta: float) -> Floats:
    """Return the minimiser of (5.2) for designs with ``X'X = beta I`` by the shrinkage forms of A.10.

    A client lies between its own fit and its cluster's centre, a centre between the mean of its clients' fits and the common
    centre, each weighted by precision.
    """
    s_c, s_d, s_e = sample.spread
    sharp, c, m = beta / s_e, 1 / s_d, 1 / s_c
    fit = sample.moment / beta
    weight = c * sharp / (sharp + c)  # C_ij, the same for all
    sizes = np.bincount(sample.cluster)
    mean = np.stack([fit[sample.cluster == j].mean(0) for j in range(len(sizes))])
    total = weight * sizes
    depth = m * total / (m + total)  # D_i
    common = depth @ mean / depth.sum()
    clusters = (total[:, None] * mean + m * common) / (m + total)[:, None]
    return np.asarray((sharp * fit + c * clusters[sample.cluster]) / (sharp + c))


def james_stein(y: Floats, positive: bool = True) -> Floats:
    """Estimate all clients of one cluster from ``y_i ~ N(theta_i, I)``, ``theta_i ~ N(centre, I)`` (Proposition 5.4).

    The best linear unbiased estimator is ``(y_i + mean of all) / 2``, which with the others' mean is ``(n + 1) / 2n y_i +
    (n - 1) / 2n mean_{-i}`` (A.12 prints the two weights exchanged). The paper shrinks the others' mean by a factor C and
    leaves C to the literature; this takes James and Stein's for a mean of variance ``2 / (n - 1)``, its positive part unless
    told otherwise.

    Args:
        y: One row per client; more than three columns.
        positive: Never shrink beyond zero.
    """
    n, d = y.shape
    if n < 2 or d <= 3:
        raise BadInput(
            f"James and Stein's estimator needs at least 2 clients and more than 3 dimensions, not {n} and {d}"
        )
    others = (y.sum(0) - y) / (n - 1)
    shrink = 1 - (d - 2) * 2 / (n - 1) / np.square(others).sum(1, keepdims=True)
    shrink = np.maximum(shrink, 0) if positive else shrink
    return np.asarray((n + 1) / (2 * n) * y + (n - 1) / (2 * n) * shrink * others)
