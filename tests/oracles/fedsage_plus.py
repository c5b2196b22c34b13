"""FedSage+'s generator on dense matrices, and its losses (Zhang et al. 2021)."""

from __future__ import annotations

import torch


def cross_loss(generated, others):
    """Nearest row of each other client to each generated one; mean of all entries."""
    total = 0.0
    for rows in others:
        for made in generated:
            distances = []
            for row in rows:
                squares = [(a - b) ** 2 for a, b in zip(made, row, strict=True)]
                distances.append(sum(squares) / len(squares))
            total += min(distances)
    return total / (len(others) * len(generated))


def sage(t, prefix, x, edges):
    """GraphSAGE of two layers with ReLU after each, on a matrix of 0 and 1."""
    degree = edges.sum(1, keepdim=True).clamp(min=1)
    for k in range(2):
        of = f"{prefix}convs.{k}."
        mean = (edges @ x / degree) @ t[of + "neighbours.weight"].T
        x = torch.relu(mean + t[of + "neighbours.bias"] + x @ t[of + "root"].T)
    return x


def generated(t, x, edges, noise):
    """Counts of each node, and the features of the neighbours it may get."""
    h = sage(t, "encoder.", x, edges)
    counts = torch.relu(h @ t["encoder.readout.weight"][0] + t["encoder.readout.bias"])
    z = h + noise
    for k in range(2):
        z = torch.relu(z @ t[f"layers.{k}.weight"].T + t[f"layers.{k}.bias"])
    z = torch.tanh(z @ t["layers.2.weight"].T + t["layers.2.bias"])
    return counts, z.view(len(x), -1, x.shape[1])


def joined(x, edges, counts, features):
    """Mended graph: features, edges, owners and features of what was added."""
    owners = [
        v
        for v, count in enumerate(counts.tolist())
        for _ in range(min(round(count), features.shape[1]))
    ]
    slots = [owners[:k].count(v) for k, v in enumerate(owners)]
    n, new = len(x), features[owners, slots]
    whole = torch.zeros(n + len(owners), n + len(owners))
    whole[:n, :n] = edges
    for k, v in enumerate(owners):
        whole[v, n + k] = whole[n + k, v] = 1
    return torch.cat([x, new]), whole, owners, new


def mend(start, classifier, x, edges, y, train, hidden, noises, *, rate, decay):
    """Owners and features of the neighbours that a client generates.

    One step for each of ``noises`` but the last, which is of the generation.
    """
    seen = [v for v in range(len(x)) if v not in hidden]
    t = {n: v.clone().requires_grad_() for n, v in start.items()}
    c = {n: v.clone().requires_grad_() for n, v in classifier.items()}
    missing = edges[seen][:, hidden].sum(1)
    t["encoder.readout.bias"].data.fill_(missing.mean())
    optimizer = torch.optim.Adam(
        [*t.values(), *c.values()], lr=rate, weight_decay=decay
    )
    known, inside = x[seen], edges[seen][:, seen]
    for noise in noises[:-1]:
        optimizer.zero_grad()
        counts, features = generated(t, known, inside, noise)
        apart = (counts - missing).abs()
        loss = torch.where(apart < 1, apart**2 / 2, apart - 0.5).mean()
        nearest = [
            (features[row] - x[u]).square().mean(1).min()
            for row, v in enumerate(seen)
            for u in hidden
            if edges[v, u]
        ]
        loss = loss + torch.stack(nearest).mean()
        whole, links, *_ = joined(known, inside, counts, features)
        logits = sage(c, "", whole, links) @ c["readout.weight"].T + c["readout.bias"]
        chosen = torch.log_softmax(logits, 1)[[seen.index(v) for v in train]]
        loss = loss - chosen[range(len(train)), y[train]].mean()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return joined(x, edges, *generated(t, x, edges, noises[-1]))[2:]
