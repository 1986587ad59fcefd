"""Time of a round's gradients against a floor: the same arithmetic, batched by hand.

    scripts/bench_gradients [--job J100 ...] [--unit record|client] [--seconds 20]

The floor is plain PyTorch for this one model and equal client sizes, cut into blocks of the best of
several sizes, with no care for packing, ragged clients, NaN or labels; for a convolutional network
the best of several ways, see `network_floor`. Both write the same float32
[clients, d] array again and again, on one thread, alternating; times are this thread's processor
time, medians, and the tenth and ninetieth percentile of the ratio. Data are random: no branch
depends on them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.network_floor import SHAPE, Given, OneByOne, Unfolded, VmapLoop, cnn
from fl_shuffle.gradients import make_gradient_engine

Floor = Callable[[Given, Tensor], None]

JOBS = {
    "J100": (100, 600, 1000),
    "J1000": (1000, 60, 1000),
    "JS1000": (1000, 60, 0),
    "JS10000": (10000, 6, 0),
    "JS60000": (60000, 1, 0),
}
NETWORK_JOBS = {"C100": (100, 60)}
FEATURES, CLASSES, RADIUS = 60, 10, 1.0
# What the floor clips to: the engine's radius, less what covers its rounding.
floor_radius = RADIUS
FLOOR_ROWS = (120, 240, 600, 2400, 6000)
NETWORK_ROWS = (60, 120, 240)


def model(hidden: int) -> nn.Module:
    torch.manual_seed(1)
    if not hidden:
        return nn.Linear(FEATURES, CLASSES)
    return nn.Sequential(nn.Linear(FEATURES, hidden), nn.ReLU(), nn.Linear(hidden, CLASSES))


def output_error(logits: Tensor, labels: Tensor) -> Tensor:
    error = torch.softmax(logits, 0)
    error.scatter_add_(0, labels[None], torch.tensor([[-1.0]]).expand(1, len(labels)))
    return error


def factor(squares: Tensor, size: int) -> Tensor:
    return squares.rsqrt_().mul_(floor_radius).clamp_(max=1.0).mul_(1.0 / size)


def outer(error: Tensor, x: Tensor, out: Tensor, product: Tensor) -> None:
    """out [k, a, b] = error [k, a, n] x [k, n, b], by whichever call is fastest."""
    if x.shape[1] == 1:
        torch.mul(error, x, out=out)
    elif error[0].numel() * x.shape[2] > 200_000:
        torch.bmm(error, x, out=out)
    else:
        step = max(1, 120_000 // out[0].numel())
        for start in range(0, len(x), step):
            piece = slice(start, start + step)
            out[piece] = torch.bmm(error[piece], x[piece], out=product[: len(x[piece])])


def floor_linear(
    flat: Tensor, x: Tensor, y: Tensor, size: int, per_record: bool, rows: int, out: Tensor
) -> None:
    weight, bias = flat[: FEATURES * CLASSES].view(CLASSES, FEATURES), flat[-CLASSES:]
    step = max(1, rows // size)
    product = torch.empty(min(step, 200), CLASSES, FEATURES)
    for start in range(0, len(out), step):
        k = min(step, len(out) - start)
        n = k * size
        data = x[start * size : start * size + n]
        error = output_error(
            torch.addmm(bias[:, None], weight, data.T), y[start * size : start * size + n]
        )
        if per_record:
            squares = torch.linalg.vector_norm(data, dim=1).square_().add_(1.0)
            error *= factor(squares.mul_((error * error).sum(0)), size)
        else:
            error *= 1.0 / size
        error = error.view(CLASSES, k, size)
        target = out[start : start + k]
        outer(
            error.transpose(0, 1),
            data.view(k, size, FEATURES),
            target[:, :-CLASSES].view(k, CLASSES, FEATURES),
            product,
        )
        target[:, -CLASSES:] = error.sum(2).T if size > 1 else error[:, :, 0].T


def floor_mlp(
    flat: Tensor, x: Tensor, y: Tensor, size: int, per_record: bool, rows: int, out: Tensor
) -> None:
    hidden = JOBS["J100"][2]
    cut = [FEATURES * hidden, hidden, hidden * CLASSES, CLASSES]
    w1, b1, w2, b2 = torch.split(flat, cut)
    w1, w2 = w1.view(hidden, FEATURES), w2.view(CLASSES, hidden)
    step = max(1, rows // size)
    tile = min(size, rows)
    active, lower = torch.empty(2, step * tile, hidden)
    product = torch.empty(step, CLASSES, hidden)
    for start in range(0, len(out), step):
        k = min(step, len(out) - start)
        target = out[start : start + k]
        v1, c1, v2, c2 = torch.split(target, cut, dim=1)
        v1, v2 = v1.view(k, hidden, FEATURES), v2.view(k, CLASSES, hidden)
        for first in range(0, size, tile):
            m = min(tile, size - first)
            n = k * m
            where = slice(start * size + first, start * size + first + n)
            data = x[where]
            h, e1 = active[:n], lower[:n]
            torch.addmm(b1, data, w1.T, out=h).relu_()
            e2 = output_error(torch.addmm(b2[:, None], w2, h.T), y[where])
            if not per_record:
                e2 *= 1.0 / size
            torch.mm(e2.T, w2, out=e1)
            torch.ops.aten.threshold_backward.grad_input(e1, h, 0, grad_input=e1)
            if per_record:
                squares = torch.linalg.vector_norm(h, dim=1).square_().add_(1.0)
                squares *= (e2 * e2).sum(0)
                of_data = torch.linalg.vector_norm(data, dim=1).square_().add_(1.0)
                squares.addcmul_(of_data, torch.linalg.vector_norm(e1, dim=1).square_())
                scale = factor(squares, size)
                e2 *= scale
                e1 *= scale[:, None]
            g1, g2 = e1.view(k, m, hidden), e2.view(CLASSES, k, m)
            data, h = data.view(k, m, FEATURES), h.view(k, m, hidden)
            if first:
                v1.baddbmm_(g1.transpose(1, 2), data)
                v2.baddbmm_(g2.transpose(0, 1), h)
                c1 += g1.sum(1)
                c2 += g2.sum(2).T
            else:
                torch.bmm(g1.transpose(1, 2), data, out=v1)
                outer(g2.transpose(0, 1), h, v2, product)
                c1.copy_(g1.sum(1))
                c2.copy_(g2.sum(2).T)


def seconds(call: Callable[[], object]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def bench(job: str, unit: str, budget: float) -> None:
    global floor_radius  # noqa: PLW0603
    per_record = unit == "record"
    network = job in NETWORK_JOBS
    clients, size = NETWORK_JOBS[job] if network else JOBS[job][:2]
    hidden = 0 if network else JOBS[job][2]
    module, shape = (cnn(), SHAPE) if network else (model(hidden), (FEATURES,))
    flat = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    x = torch.randn(clients * size, *shape) * 0.3
    y = torch.randint(0, CLASSES, (clients * size,))
    offsets = torch.arange(clients + 1) * size
    clip = "record" if per_record else "none"
    engine = make_gradient_engine(module, clip=clip, records=len(y), shape=shape)
    floor_radius = float(engine.record_radius(RADIUS, np.array([size]))[0])
    # Packs as a worker makes them: rows that stay in the cache.
    pack = max(1, min(clients, 2_000_000 // engine.dimension))
    ours, theirs = torch.empty(2, pack, engine.dimension)
    of_chain = floor_mlp if hidden else floor_linear
    floors: dict[str, Floor] = {"": lambda given, out: of_chain(*given, out)}
    if network:
        floors = {"vmap, ": VmapLoop(cnn(), floor_radius), "hooks, ": Unfolded(cnn(), floor_radius)}
        if not per_record:
            floors["a pass a client, "] = OneByOne(cnn())

    def packs(work: Callable[[int, int], object]) -> Callable[[], None]:
        def run() -> None:
            for start in range(0, clients, pack):
                work(start, min(pack, clients - start))

        return run

    def our_pack(start: int, k: int) -> None:
        members = slice(start * size, (start + k) * size)
        engine.client_means(flat, x[members], y[members], offsets[: k + 1], RADIUS, ours[:k])

    def floor_pack(floor: Floor, rows: int) -> Callable[[int, int], None]:
        def work(start: int, k: int) -> None:
            members = slice(start * size, (start + k) * size)
            floor(Given(flat, x[members], y[members], size, per_record, rows), theirs[:k])

        return work

    our_round = packs(our_pack)
    candidates = {
        f"{name}blocks of {rows} records": packs(floor_pack(floor, rows))
        for name, floor in floors.items()
        for rows in (NETWORK_ROWS if network else FLOOR_ROWS)
    }
    our_round()
    trial = {name: min(seconds(call), seconds(call)) for name, call in candidates.items()}
    best = min(trial, key=trial.__getitem__)
    floor_round = candidates[best]
    floor_round()
    # The last pack of both.
    last = clients - (clients - 1) // pack * pack
    difference = float((ours - theirs)[:last].abs().max() / theirs[:last].abs().max())
    if difference > 1e-5:
        raise SystemExit(f"{job}: ours and the floor differ by {difference:.1e}")
    times: list[tuple[float, float]] = []
    end = time.perf_counter() + budget
    while len(times) < 5 or time.perf_counter() < end:
        times.append((seconds(our_round), seconds(floor_round)))
    mine, base = median(a for a, _ in times), median(b for _, b in times)
    ratios = sorted(a / b for a, b in times)
    low, ratio, high = (ratios[round(share * (len(ratios) - 1))] for share in (0.1, 0.5, 0.9))
    print(
        f"{job:8} {unit:6} ours {mine * 1e3:8.1f} ms  floor {base * 1e3:8.1f} ms "
        f"({best})  ratio {ratio:.2f} ({low:.2f} to {high:.2f})  "
        f"[{len(times)} rounds, {engine.path}]",
        flush=True,
    )
    if network:
        others = {name: value for name, value in trial.items() if name != best}
        shown = "; ".join(f"{name} {value * 1e3:.0f}" for name, value in others.items())
        print(f"{'':15} in trials, ms: {shown}", flush=True)


def main() -> None:
    jobs = [*JOBS, *NETWORK_JOBS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--job", nargs="+", choices=jobs, default=jobs)
    parser.add_argument("--unit", nargs="+", choices=["record", "client"], default=None)
    parser.add_argument("--seconds", type=float, default=20.0, help="for each row of the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for unit in arguments.unit or ["record", "client"]:
        for job in arguments.job:
            bench(job, unit, arguments.seconds)


if __name__ == "__main__":
    main()
