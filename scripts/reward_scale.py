"""What a reward that is ten times as large does to a critic, and what helps it.

An agent is trained on Hopper-v5; then its reward is multiplied by ten (the environment's own
weights, so that every term grows alike) and runs start from it in several ways. How well the critic
explains its lambda = 1 returns is followed iteration by iteration. Curves are kept in
`docs/data/reward_scale.csv`; `docs/critic.md` and its picture are written from them.

    python scripts/reward_scale.py             # fifteen minutes on two cores
    python scripts/reward_scale.py --report    # the document alone, from the kept curves
"""

import argparse
import csv
import os
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from silent_bugs_report import Interval

from ppo.config import load_config
from ppo.inheritance import Ancestor, Reset
from ppo.train import train

ROOT = Path(__file__).resolve().parent.parent
CURVES = ROOT / "docs" / "data" / "reward_scale.csv"
DOCUMENT = ROOT / "docs" / "critic.md"
TEXT = ROOT / "scripts" / "texts" / "critic.md"
PICTURE = ROOT / "docs" / "images" / "reward_scale.png"
COLUMNS = ("variant", "seed", "iteration", "explained_variance_mc", "return")

BEFORE, AFTER = 102_400, 327_680  # env steps: 50 and 160 iterations
TIMES_TEN = (
    "env.kwargs.forward_reward_weight=10",
    "env.kwargs.healthy_reward=10",
    "env.kwargs.ctrl_cost_weight=1e-2",
)
RECOVERED, LASTING = 0.5, 3  # explained variance, and the iterations in a row that it must hold


@dataclass(frozen=True)
class Variant:
    """A way to go on.

    Attributes:
        normalized: rewards are normalised, before and after.
        overrides: of the run that goes on.
        resets: what it does not take over.
        changed: the reward is ten times as large.
    """

    normalized: bool = False
    overrides: tuple[str, ...] = ()
    resets: tuple[Reset, ...] = ()
    changed: bool = True


VARIANTS = {
    "unchanged reward": Variant(changed=False),
    "times ten": Variant(),
    "times ten, warm-up of 10 iterations": Variant(overrides=("critic.warmup_iterations=10",)),
    "times ten, gate: value_epochs": Variant(
        overrides=("critic.gate=value_epochs", "critic.extra_value_epochs=20")
    ),
    "times ten, critic reset": Variant(resets=("critic",)),
    "times ten, critic.learning_rate 3e-3": Variant(overrides=("critic.learning_rate=3e-3",)),
    "times ten, warm-up and critic.learning_rate 3e-3": Variant(
        overrides=("critic.warmup_iterations=10", "critic.learning_rate=3e-3")
    ),
    "normalised, unchanged reward": Variant(normalized=True, changed=False),
    "normalised, times ten": Variant(normalized=True),
    "normalised, times ten, reward normaliser reset": Variant(
        normalized=True, resets=("reward-normalizer",)
    ),
}


def take_core(cores: "SimpleQueue[int]") -> None:
    """Confine this process to a core of its own."""
    os.sched_setaffinity(0, {cores.get()})


def one_seed(seed: int) -> list[dict[str, object]]:
    """All variants of a seed, from two common parents."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        parents = {
            normalized: train(
                load_config(
                    ROOT / "configs" / "hopper.yaml",
                    (*_common(folder, seed, BEFORE, normalized), "critic.gate=off"),
                )
            ).run_dir
            for normalized in {variant.normalized for variant in VARIANTS.values()}
        }
        for name, variant in VARIANTS.items():
            config = load_config(
                ROOT / "configs" / "hopper.yaml",
                (
                    *_common(folder, seed + 1_000, AFTER, variant.normalized),
                    "critic.gate=off",
                    *(TIMES_TEN if variant.changed else ()),
                    *variant.overrides,
                ),
            )
            ancestor = Ancestor.read(parents[variant.normalized], variant.resets)
            run_dir = train(config, ancestor=ancestor).run_dir
            rows += _curve(run_dir, name, seed, scale=10.0 if variant.changed else 1.0)
            print(f"seed {seed}: {name}", flush=True)
    return rows


def _common(folder: str, seed: int, total: int, normalized: bool) -> tuple[str, ...]:
    return (
        f"seed={seed}",
        f"runs_dir={folder}",
        f"ppo.total_timesteps={total}",
        f"normalize.rewards={str(normalized).lower()}",
        "eval.every=0",
        "eval.episodes=1",
        "logging.progress=off",
        "logging.tensorboard=false",
    )


def _curve(run_dir: Path, name: str, seed: int, *, scale: float) -> list[dict[str, object]]:
    with (run_dir / "progress.csv").open(encoding="utf-8") as stream:
        return [
            {
                "variant": name,
                "seed": seed,
                "iteration": iteration,
                "explained_variance_mc": round(float(row["train/explained_variance_mc"]), 4),
                "return": round(float(row["rollout/ep_rew_mean"] or "nan") / scale, 1),
            }
            for iteration, row in enumerate(
                (row for row in csv.DictReader(stream) if row["train/explained_variance_mc"]), 1
            )
        ]


def recovery(explained: Sequence[float]) -> int:
    """The first iteration from which the critic explains enough for a while; one more than there
    are where it never does.
    """
    enough = np.array(explained) >= RECOVERED
    for k in range(len(enough) - LASTING + 1):
        if enough[k : k + LASTING].all():
            return k + 1
    return len(enough) + 1


def report(curves: Sequence[Mapping[str, str]]) -> str:
    """The document, from the kept curves; draws the picture, too."""
    by_variant: dict[str, list[list[float]]] = {}
    returns: dict[str, list[float]] = {}
    for name in VARIANTS:
        seeds = dict.fromkeys(row["seed"] for row in curves if row["variant"] == name)
        of_seeds = [[r for r in curves if r["variant"] == name and r["seed"] == s] for s in seeds]
        by_variant[name] = [[float(r["explained_variance_mc"]) for r in run] for run in of_seeds]
        returns[name] = [float(run[-1]["return"]) for run in of_seeds]
    _draw(by_variant)
    lines = []
    for name, runs in by_variant.items():
        took = [recovery(run) for run in runs]
        never = sum(k > len(run) for k, run in zip(took, runs, strict=True))
        lines.append(
            f"| {name} | {np.mean([run[0] for run in runs]):.2f} |"
            f" {np.median(took):.0f} ({min(took)} to {max(took)})"
            f"{f', {never} never' if never else ''} | {Interval.of([run[-1] for run in runs])} |"
            f" {Interval.of(returns[name])} |"
        )
    return TEXT.read_text(encoding="utf-8").format(
        seeds=len(next(iter(by_variant.values()))),
        before=f"{BEFORE:,}",
        iterations=AFTER // 2048,
        recovered=RECOVERED,
        lasting=LASTING,
        table="\n".join(lines),
    )


def _draw(by_variant: Mapping[str, Sequence[Sequence[float]]]) -> None:
    figure = Figure(figsize=(10.0, 5.2), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axis, normalized in ((left, False), (right, True)):
        for name, variant in VARIANTS.items():
            if variant.normalized != normalized:
                continue
            runs = np.array(by_variant[name])
            x, grey = np.arange(1, runs.shape[1] + 1), not variant.changed
            (line,) = axis.plot(
                x, runs.mean(axis=0), label=name, linewidth=1.6, color="#66727f" if grey else None
            )
            spread = runs.std(axis=0, ddof=1)
            axis.fill_between(
                x,
                runs.mean(axis=0) - spread,
                runs.mean(axis=0) + spread,
                color=line.get_color(),
                alpha=0.12,
                linewidth=0,
            )
        axis.axhline(RECOVERED, color="#66727f", linewidth=0.8, linestyle=(0, (4, 3)))
        axis.set_ylim(-0.05, 1.05)
        axis.set_xlabel("iteration after the change")
        axis.set_title("rewards normalised" if normalized else "rewards not normalised")
        axis.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.15), frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e4e8ec", linewidth=0.7)
    left.set_ylabel("expl. var. of λ = 1 returns (mean ± std)")
    FigureCanvasAgg(figure).print_figure(PICTURE, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="seeds 0 to this")
    parser.add_argument("--report", action="store_true", help="write the document alone")
    arguments = parser.parse_args()
    if arguments.seeds < 2:
        parser.error("--seeds must be at least 2: one seed has no interval")
    if not arguments.report:
        context, available = get_context("spawn"), sorted(os.sched_getaffinity(0))
        cores: SimpleQueue[int] = context.SimpleQueue()
        for core in available:
            cores.put(core)
        with ProcessPoolExecutor(len(available), context, take_core, (cores,)) as pool:
            found = pool.map(one_seed, range(arguments.seeds))
            rows = [row for seed in found for row in seed]
        with CURVES.open("w", encoding="utf-8", newline="") as stream:
            writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with CURVES.open(encoding="utf-8") as stream:
        DOCUMENT.write_text(report(list(csv.DictReader(stream))), encoding="utf-8")
    print(f"{DOCUMENT.relative_to(ROOT)} is written")


if __name__ == "__main__":
    main()
