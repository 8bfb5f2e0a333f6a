"""Write docs/speed.md and its picture from the figures that `benchmark_speed.py` kept.

python scripts/speed_report.py
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "docs" / "data" / "speed.json"
PAGE = ROOT / "docs" / "speed.md"
PICTURE = ROOT / "docs" / "images" / "speed.png"
OURS, SB3 = "this project", "Stable-Baselines3"
COLOURS = {OURS: "#1f77b4", SB3: "#9a9a9a", "SBX": "#c9a227", "EnvPool": "#c9a227"}


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def training_table(figures: dict[str, Any]) -> str:
    rows = []
    for env_id, sides in figures["training"].items():
        peers = [side for side in sides if side not in (OURS, "milliseconds of an iteration")]
        rows += [
            [
                env_id,
                f"{sides[OURS]['speed']:,.0f}",
                peer,
                f"{sides[peer]['speed']:,.0f}",
                f"**{median(sides[peer]['ratios']):.2f}** ({min(sides[peer]['ratios']):.2f} to"
                f" {max(sides[peer]['ratios']):.2f})",
            ]
            for peer in peers
        ]
    return table(["task", "env steps/s", "peer", "its env steps/s", "ratio"], rows)


def median(numbers: list[float]) -> float:
    ordered = sorted(numbers)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def budget_table(figures: dict[str, Any]) -> str:
    """An iteration of HalfCheetah-v5, beside its budget and what its parts take alone."""
    spent = figures["training"]["HalfCheetah-v5"]["milliseconds of an iteration"]
    stepping = figures["stepping"]["HalfCheetah-v5"]
    steps, acting = figures["gradient_step"][0], figures["acting"]
    env_steps, gradient_steps, vector_steps = 2_048, 320, 256
    # part: (its phases, budget, alone, at least), in milliseconds.
    parts = {
        "stepping": (
            ("stepping",),
            "52",
            f"{env_steps / stepping[OURS] * 1e3:.1f}",
            f"{env_steps / stepping['physics'] * 1e3:.1f} (physics)",
        ),
        "normalising and acting": (
            ("normalising", "acting"),
            "20",
            f"{vector_steps * acting[OURS] / 1e3:.1f} (acting)",
            f"{vector_steps * acting['floor'] / 1e3:.1f} (arithmetic)",
        ),
        "learning": (
            ("learning",),
            "61 to 86",
            f"{gradient_steps * steps['compiled']:.1f}",
            f"{gradient_steps * steps['floor']:.1f} (arithmetic)",
        ),
        "collecting, estimating, logging": (("collecting", "estimating", "logging"), "15", "", ""),
    }
    rows = [
        [part, budget, f"{sum(spent.get(phase, 0.0) for phase in phases):.1f}", alone, least]
        for part, (phases, budget, alone, least) in parts.items()
    ]
    known = [phase for phases, *_ in parts.values() for phase in phases]
    rows.append(
        ["all", "150 to 170", f"{sum(spent.get(phase, 0.0) for phase in known):.1f}", "", ""]
    )
    return table(["part", "budget for 8 times", "in training", "alone", "at least"], rows)


def stepping_table(figures: dict[str, Any]) -> str:
    rows = []
    for env_id, speeds in figures["stepping"].items():
        pool = speeds.get("EnvPool")
        rows.append(
            [
                env_id,
                f"{speeds[OURS]:,.0f}",
                f"{speeds['SyncVectorEnv']:,.0f}",
                f"**{speeds[OURS] / speeds['SyncVectorEnv']:.2f}**",
                "" if pool is None else f"{pool:,.0f}",
                "" if pool is None else f"{speeds[OURS] / pool:.2f}",
                f"{speeds[OURS] / speeds['physics']:.0%}",
                f"{speeds['physics'] / speeds['SyncVectorEnv']:.2f}",
            ]
        )
    header = ["task", "this project", "SyncVectorEnv", "ratio", "EnvPool", "ratio"]
    return table([*header, "of it physics", "ratio of physics alone"], rows)


def gradient_table(figures: dict[str, Any]) -> str:
    rows = [
        [
            f"{row['width']}-{row['width']}, batch {row['batch_size']}",
            f"{row['compiled']:.3f}",
            f"{row['eager']:.2f}",
            f"{row[SB3]:.2f}",
            f"**{row[SB3] / row['compiled']:.1f}**",
            f"{row['floor']:.3f}",
        ]
        for row in figures["gradient_step"]
    ]
    return table(["networks", "compiled", "eager", SB3, "ratio", "arithmetic"], rows)


def scaling_table(figures: dict[str, Any]) -> str:
    rows = [
        [
            str(row["n_envs"]),
            f"{row['width']}-{row['width']}",
            str(row["batch_size"]),
            f"{row[OURS]:,.0f}",
            f"{row[SB3]:,.0f}",
            f"{row[OURS] / row[SB3]:.2f}",
        ]
        for row in figures["scaling"]
    ]
    return table(["environments", "networks", "batch", "env steps/s", SB3, "ratio"], rows)


def page(figures: dict[str, Any]) -> Iterator[str]:
    start, acting, gae = figures["start_up"], figures["acting"], figures["gae"]
    yield "# Speed"
    yield (
        f"Measured by `python scripts/benchmark_speed.py` in one run on {figures['cores']} cores"
        " without a GPU, and written by it. HalfCheetah-v5 where nothing else is said; 8"
        " environments × 256 steps, batch 64, 10 epochs, 64-64 tanh networks, both normalisers on."
        " Speeds of shared machines drift: read the ratios."
    )
    yield "![Env steps per second, beside other trainers](images/speed.png)"
    yield "## Training"
    yield (
        f"Each side trains {figures['env_steps']:,} env steps in a process of its own, alternately;"
        f" medians of {figures['repeats']} repeats (least and most). This side is `ppo train` as"
        " shipped, with logs, TensorBoard, checkpoints and evaluations; the peers have none of"
        f" these. The first {figures['warmup']:,} env steps, in which JAX and this project compile,"
        " are left out on all sides."
    )
    yield training_table(figures)
    if "HalfCheetah-v5" in figures["training"]:
        yield "### Where an iteration goes"
        yield (
            "Milliseconds of 2,048 env steps, 320 gradient steps. The budget is what an iteration"
            " of eight times Stable-Baselines3's speed may take on a machine where that does 1,500"
            " to 1,700 env steps/s; in training is by `ppo train --profile`; alone is the same part"
            " by itself; at least is MuJoCo's own stepping, or the products at the speed of a"
            " large matrix product with their hyperbolic tangents."
        )
        yield budget_table(figures)
    yield "## Stepping alone"
    yield (
        "Env steps/s with random actions, 8 environments. EnvPool 1.2 has a MuJoCo of its own"
        " (3.6); this project's numbers are Gymnasium's, bit for bit, so it steps with the same"
        " MuJoCo as Gymnasium. The last two columns say what that leaves: the share of a vector"
        " step in which MuJoCo computes on all cores, and what the ratio to SyncVectorEnv would be"
        " if everything else took no time."
    )
    yield stepping_table(figures)
    yield "## A gradient step alone"
    yield "Milliseconds, within an update of 2,048 rows."
    yield gradient_table(figures)
    yield "## Acting and estimating alone"
    yield table(
        ["", "this project", SB3],
        [
            [
                "8 observations to 8 actions (µs)",
                f"{acting[OURS]:.0f} (arithmetic: {acting['floor']:.0f})",
                f"{acting[SB3]:.0f}",
            ],
            ["GAE of 256 × 8 rows (ms)", f"{gae[OURS]:.2f}", f"{gae[SB3]:.2f}"],
        ],
    )
    yield "## How the cost grows"
    yield "Env steps/s of trainings with 2,048 env steps an iteration, one run each."
    yield scaling_table(figures)
    yield "## Start-up and memory"
    yield (
        f"A whole `ppo train` of 8 env steps takes {start['first_step']:.1f} s, from the command to"
        " its end: the first env step comes before that. Compiling the update takes"
        f" {start['compiling']:.1f} s, once for each shape of the networks; a second start finds"
        f" it. Training takes {start['memory']:.0f} MiB at its peak."
    )


def draw(figures: dict[str, Any]) -> None:
    figure = Figure(figsize=(9.0, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, 2, gridspec_kw={"width_ratios": [1, 1.2]})
    for panel, (title, tasks) in zip(
        axes,
        (
            (
                "Training",
                {env: {k: v["speed"] for k, v in sides.items() if "speed" in v}
                 for env, sides in figures["training"].items()},
            ),
            (
                "Stepping alone",
                {
                    env: {side: speed for side, speed in speeds.items() if side != "physics"}
                    for env, speeds in figures["stepping"].items()
                },
            ),
        ),
        strict=True,
    ):  # fmt: skip
        sides = list(dict.fromkeys(side for speeds in tasks.values() for side in speeds))
        for place, side in enumerate(sides):
            offsets = [index + (place - (len(sides) - 1) / 2) * 0.27 for index in range(len(tasks))]
            heights = [speeds.get(side, 0.0) / 1e3 for speeds in tasks.values()]
            colour = COLOURS.get(side, COLOURS[SB3])
            bars = panel.bar(offsets, heights, 0.25, label=side, color=colour)
            panel.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
        panel.set_xticks(range(len(tasks)), [env.removesuffix("-v5") for env in tasks], fontsize=8)
        panel.set_title(title, fontsize=10)
        panel.set_ylabel("thousand env steps/s", fontsize=8)
        panel.tick_params(axis="y", labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(PICTURE, dpi=150)


def write_report(data: Path) -> None:
    figures = json.loads(data.read_text(encoding="utf-8"))
    PAGE.write_text("\n\n".join(page(figures)) + "\n", encoding="utf-8")
    draw(figures)


if __name__ == "__main__":
    write_report(DATA)
