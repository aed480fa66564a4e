"""Losses as their formulas say, row by row in float64: value and gradients."""

import numpy as np


def as_float64(*arrays):
    return tuple(np.asarray(array, np.float64) for array in arrays)


def unit(rows):
    """Rows at length 1, and the gradient in the rows of one in these; zeros stay."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    units = np.divide(rows, lengths, where=lengths > 0, out=np.zeros_like(rows))

    def pulled_back(gradient):
        along = (gradient * units).sum(axis=1, keepdims=True) * units
        return np.divide(gradient - along, lengths, where=lengths > 0, out=np.zeros_like(rows))

    return units, pulled_back


def distances_of(x, y, distance):
    """Distances [n, m], and a function from their slopes to the gradients."""
    if distance == "dot":
        return -x @ y.T, lambda slope: (-slope @ y, -slope.T @ x)
    values = np.stack([((row - y) ** 2).sum(axis=1) for row in x])
    if distance == "euc":
        values = np.sqrt(values)

    def gradients(slope):
        of_x, of_y = np.zeros_like(x), np.zeros_like(y)
        for i, row in enumerate(x):
            each = 2 * (row - y)
            if distance == "euc":  # 0 where the distance is
                each /= np.where(values[i] > 0, 2 * values[i], np.inf)[:, None]
            of_x[i] = slope[i] @ each
            of_y -= slope[i][:, None] * each
        return of_x, of_y

    return values, gradients


def one_way(distances, clusters, smoothing, prior):
    """Mean divergence over the rows of distances [n, N], and its slopes."""
    count = len(distances)
    value, slope = 0.0, np.zeros_like(distances)
    for i, row in enumerate(distances):
        kept = np.flatnonzero(negatives_of(i, len(row), clusters) | (np.arange(len(row)) == i))
        others = kept[kept != i]
        target = np.zeros(len(row))
        if prior == "uniform":
            target[kept] = smoothing / len(kept)
            target[i] += 1 - smoothing
        elif len(others):
            weights = np.exp(row[others].min() - row[others])
            target[others] = smoothing * weights / weights.sum()
            target[i] = 1 - smoothing
        else:
            target[i] = 1
        shifted = row[kept].min() - row[kept]
        log_p = shifted - np.log(np.exp(shifted).sum())
        on_kept = target[kept]
        value += (on_kept * (np.log(np.where(on_kept > 0, on_kept, 1)) - log_p)).sum() / count
        slope[i, kept] = (on_kept - np.exp(log_p)) / count
    return value, slope


def negatives_of(i, count, clusters):
    """Mask of the negatives of row i, bool [count]; `clusters` may be shorter than `count`."""
    mask = np.arange(count) != i
    if clusters is not None and clusters[i] >= 0:
        known = np.asarray(clusters[:count])
        mask[: len(known)] &= known != clusters[i]
    return mask


def sdml(x, y, clusters=None, *, smoothing=0.3, distance="ssd", prior="uniform", symmetric=False):
    x, y = as_float64(x, y)
    n = len(x)
    distances, gradients = distances_of(x, y, distance)
    value, slope = one_way(distances, clusters, smoothing, prior)
    if symmetric:
        back, back_slope = one_way(distances[:, :n].T, clusters, smoothing, prior)
        value, slope = (value + back) / 2, slope / 2
        slope[:, :n] += back_slope.T / 2
    return value, *gradients(slope)


def ranking(x, y, clusters=None, *, similarity_scale=20.0, smoothing=0.0, symmetric=False):
    (x, of_x), (y, of_y) = map(unit, as_float64(x, y))
    options = {"smoothing": smoothing, "symmetric": symmetric, "distance": "dot"}
    value, from_x, from_y = sdml(similarity_scale * x, y, clusters, **options)
    return value, of_x(similarity_scale * from_x), of_y(from_y)


def triplet(x, y, clusters=None, *, negatives="hard", margin=0.5, distance="ssd", chosen=None):
    """Equation (2) with the mean over rows; `chosen` are the negatives, else the hard ones."""
    x, y = as_float64(x, y)
    value, of_x, of_y = 0.0, np.zeros_like(x), np.zeros_like(y)

    def measure(a, b):
        squared = ((a - b) ** 2).sum()
        if distance == "ssd":
            return squared, 2 * (a - b)
        root = np.sqrt(squared)
        return root, (a - b) / root if root > 0 else 0 * a

    for i in range(len(x)):
        allowed = np.flatnonzero(negatives_of(i, len(y), clusters))
        if not len(allowed):
            continue
        target = y[i] if negatives == "hard" else x[i]
        nearest = allowed[((target - y[allowed]) ** 2).sum(axis=1).argmin()]
        negative = nearest if chosen is None else chosen[i]
        near, near_slope = measure(x[i], y[i])
        far, far_slope = measure(x[i], y[negative])
        if near - far + margin > 0:
            value += (near - far + margin) / len(x)
            of_x[i] += (near_slope - far_slope) / len(x)
            of_y[i] -= near_slope / len(x)
            of_y[negative] += far_slope / len(x)
    return value, of_x, of_y


def measured(x, y):
    """1 - the cosine of two vectors, and its gradients; 0 where it has none."""
    a, b = np.linalg.norm(x), np.linalg.norm(y)
    if not a or not b:
        return 1.0, 0 * x, 0 * y
    cosine = x @ y / a / b
    return 1 - cosine, -(y / b - cosine * x / a) / a, -(x / a - cosine * y / b) / b


def contrastive(left, right, labels, *, margin=0.5, online=False):
    x, y = as_float64(left, right)
    same = np.asarray(labels).astype(bool)
    found = [measured(a, b) for a, b in zip(x, y, strict=True)]
    distances = np.array([value for value, _, _ in found])
    weight, hard = 0.5 / len(x), np.ones(len(x), bool)
    if online:
        weight, hard = 1.0 / len(x), hard_of(distances, same)
    value, of_x, of_y = 0.0, np.zeros_like(x), np.zeros_like(y)
    for i, (d, from_x, from_y) in enumerate(found):
        missing = d if same[i] else max(0, margin - d)
        if hard[i]:
            value += weight * missing**2
            slope = 2 * weight * missing * (1 if same[i] else -1)
            of_x[i], of_y[i] = slope * from_x, slope * from_y
    return value, of_x, of_y


def online_contrastive(left, right, labels, *, margin=0.5):
    return contrastive(left, right, labels, margin=margin, online=True)


def hard_of(distances, same):
    """sentence-transformers' choice: extremes of the other kind, means of the own without two."""
    apart, together = distances[~same], distances[same]
    far = together.max() if len(together) > 1 else apart.mean() if len(apart) else 0
    near = apart.min() if len(apart) > 1 else together.mean() if len(together) else 0
    return np.where(same, distances > near, distances < far)


def imitation(vectors, targets):
    difference = np.subtract(*as_float64(vectors, targets)) / len(vectors)
    return 0.5 * len(vectors) * (difference**2).sum(), difference, -difference


def similarities(vectors, targets, *, temperature=0.05):
    """The gradient in the targets is 0: they are constants."""
    (directions, pulled_back), n = unit(as_float64(vectors)[0]), len(vectors)

    def shares(units):
        logits = units @ units.T / temperature
        np.fill_diagonal(logits, -np.inf)
        logits -= logits.max(axis=1, keepdims=True)
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return np.exp(logs), np.where(np.isinf(logs), 0, logs)

    teacher, teacher_logs = shares(unit(as_float64(targets)[0])[0])
    student, student_logs = shares(directions)
    slopes = (student - teacher) / (n * temperature)
    gradient = pulled_back((slopes + slopes.T) @ directions)
    return (teacher * (teacher_logs - student_logs)).sum() / n, gradient, np.zeros(targets.shape)
