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
    """An iteration of HalfCheetah-v5, beside what its parts take alone."""
    sides = figures["training"]["HalfCheetah-v5"]
    spent = sides["milliseconds of an iteration"]
    steps = figures["gradient_step"][0]
    env_steps, gradient_steps, vector_steps = 2_048, 320, 256
    alone = {
        "stepping": env_steps / figures["stepping"]["HalfCheetah-v5"][OURS] * 1e3,
        "learning": gradient_steps * steps["compiled"],
        "acting": vector_steps * figures["acting"][OURS] / 1e3,
    }
    floor = {
        "learning": gradient_steps * steps["floor"],
        "acting": vector_steps * figures["acting"]["floor"] / 1e3,
    }

    def shown(phase: str, of: dict[str, float]) -> str:
        return f"{of[phase]:.1f}" if phase in of else ""

    rows = [
        [phase, f"{milliseconds:.1f}", shown(phase, alone), shown(phase, floor)]
        for phase, milliseconds in sorted(spent.items(), key=lambda item: -item[1])
    ]
    rows.append(["all", f"{sum(spent.values()):.1f}", "", ""])
    return table(["phase", "ms in training", "ms alone", "ms of arithmetic"], rows)


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
            ]
        )
    return table(["task", "this project", "SyncVectorEnv", "ratio", "EnvPool", "ratio"], rows)


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
    yield "### Where an iteration goes"
    yield (
        "2,048 env steps and 320 gradient steps, by `ppo train --profile`; what the same part takes"
        " alone; and the time of its multiplications at the speed of a large matrix product, with"
        " its hyperbolic tangents."
    )
    yield budget_table(figures)
    yield "## Stepping alone"
    yield (
        "Env steps/s with random actions, 8 environments. EnvPool 1.2 has a MuJoCo of its own"
        " (3.6); this project's numbers are Gymnasium's, bit for bit."
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
            ("Stepping alone", figures["stepping"]),
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
