import io
import math
import re

import pytest
from rich.console import Console

from ppo.dashboard import (
    Dashboard,
    Status,
    duration,
    number,
    percent,
    plain_line,
    scientific,
    sparkline,
)
from ppo.progress import ProgressView

METRICS = {
    "rollout/ep_rew_mean": 2345.67,
    "rollout/ep_len_mean": 812.4,
    "rollout/terminated_share": 0.124,
    "rollout/truncated_share": 0.876,
    "rollout/reward_forward": 2500.1,
    "rollout/reward_ctrl": -168.4,
    "train/explained_variance": 0.834,
    "train/explained_variance_mc": 0.61,
    "train/bootstrap_weight": 0.31,
    "train/approx_kl": 0.00912,
    "train/clip_fraction": 0.0812,
    "train/std": 0.6123,
    "train/learning_rate": 3e-4,
    "train/grad_norm": 0.4213,
    "train/policy_gradient_loss": -0.00123,
    "train/value_loss": 0.1234,
    "train/entropy_loss": -5.62,
    "train/clip_range": 0.2,
    "time/fps": 6210.4,
    "eval/mean_reward": 2402.1,
}


@pytest.fixture(autouse=True)
def an_ordinary_terminal(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


class Stream(io.TextIOWrapper):
    """A text stream in memory that may say that it is a terminal."""

    def __init__(self, *, terminal: bool = False, encoding: str = "utf-8"):
        super().__init__(io.BytesIO(), encoding=encoding, newline="")
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def text(self) -> str:
        self.flush()
        return self.buffer.getvalue().decode(self.encoding)


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def status(**changes) -> Status:
    fields = {
        "title": "HalfCheetah-v5 · seed 0",
        "env_steps": 460_800,
        "total_timesteps": 1_024_000,
        "fps": 6210.4,
        "elapsed": 74.2,
        "metrics": METRICS,
        "returns": [float(i) for i in range(100)],
    }
    return Status(**{**fields, **changes})


def drawn(shown: Status, width: int, height: int, encoding: str = "utf-8") -> str:
    stream = Stream(encoding=encoding)
    Console(file=stream, width=width, height=height).print(Dashboard(shown))
    return stream.text


def view(stream: Stream, mode="plain", **options) -> ProgressView:
    options = {"title": "Hopper-v5", "width": 80, "height": 24, **options}
    return ProgressView(1000, mode=mode, stream=stream, **options)


@pytest.mark.parametrize("width", [80, 120])
def test_everything_worth_a_glance_is_on_the_panel(width):
    text = drawn(status(), width, 30)
    for part in [
        "HalfCheetah-v5 · seed 0",
        "45.0%",
        "460,800 of 1,024,000 steps",
        "6,210 steps/s",
        "1:31 left",
        "2,346",
        "812.4",
        "12%",
        "88%",
        "2,402",
        "expl. var. λ ",
        "0.83",
        "expl. var. λ=1",
        "0.61",
        "0.00912",
        "8.1%",
        "0.612",
        "3e-4",
        "0.421",
        "-0.00123",
        "0.123",
        "-5.620",
        "forward",
        "2,500",
        "ctrl",
        "-168.4",
        "▁",
    ]:
        assert part in text, part
    assert "…" not in text


@pytest.mark.parametrize("width", [1, 2, 8, 20, 40, 49, 50, 75, 76, 80, 103, 104, 120, 300])
@pytest.mark.parametrize("height", [1, 4, 8, 12, 24])
def test_no_terminal_is_too_small(width, height):
    lines = drawn(status(), width, height).splitlines()
    assert max(map(len, lines)) <= min(width, 120)
    assert len(lines) <= max(3, height)


def test_a_terminal_without_unicode_gets_ascii():
    text = drawn(status(title="Hopper"), 80, 24, encoding="ascii")
    assert "expl. var. lam=1" in text
    assert "+- Episodes" in text


def test_before_the_first_episode_there_is_a_dash_not_nan():
    for text in (
        drawn(status(metrics={}, returns=[], fps=None), 80, 24),
        plain_line(status(metrics={}, fps=None)),
    ):
        assert "nan" not in text.lower()
    assert "return -  length -" in plain_line(status(metrics={}))
    assert "return                – " in drawn(status(metrics={}, returns=[]), 80, 24)


def test_the_plain_line_is_ascii_and_complete():
    assert plain_line(status()) == (
        " 45%  460,800/1,024,000 steps  6,210/s  1:31 left  return 2,346  length 812.4  ev 0.83  "
        "ev(lam=1) 0.61  weight 0.31  kl 0.00912  clip 8.1%  std 0.612  lr 3e-4  grad 0.421  "
        "eval 2,402"
    )


@pytest.mark.parametrize(
    ("ev", "weight", "colour"),
    [(0.6, 0.2, "32"), (0.4, 0.2, "33"), (0.1, 0.2, "31"), (0.1, 0.8, None)],
)
def test_the_colour_of_the_critic_is_its_verdict(ev, weight, colour):
    metrics = {"train/explained_variance_mc": ev, "train/bootstrap_weight": weight}
    stream = Stream()
    console = Console(
        file=stream,
        width=80,
        height=24,
        force_terminal=True,
        no_color=False,
        color_system="standard",
    )
    console.print(Dashboard(status(metrics=metrics)))
    assert (f"\x1b[{colour}m{ev:.2f}" in stream.text) == (colour is not None)


def test_numbers_read_at_a_glance():
    values = [0.0, 0.00912, 0.5, 12.345, 123.45, -1234.5, 1e8, 1e-5]
    shown = ["0", "0.00912", "0.500", "12.35", "123.5", "-1,234", "1.00e+08", "1e-5"]
    assert [number(value) for value in values] == shown
    assert [scientific(v) for v in (3e-4, 2.25e-4, 1.0)] == ["3e-4", "2.25e-4", "1e0"]
    assert [percent(v) for v in (0.0, 0.004, 0.5, 1.0)] == ["0%", "0.4%", "50%", "100%"]
    assert [duration(s) for s in (None, math.inf, 5, 65, 3725)] == [
        "-",
        "-",
        "0:05",
        "1:05",
        "1:02:05",
    ]


def test_the_trend_goes_from_the_lowest_to_the_highest():
    assert sparkline([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([3.0, 3.0], 9) == "▁▁"
    assert len(sparkline([float(i % 7) for i in range(1000)], 9)) == 9


def test_plain_lines_come_at_a_sensible_rate():
    stream, clock = Stream(), Clock()
    with view(stream, clock=clock) as progress:
        for step in range(100, 700, 100):
            clock.now += 1
            progress.update({"time/fps": 100.0}, step)
    lines = stream.text.splitlines()
    assert [line.split()[1] for line in lines] == ["100/1,000", "600/1,000"]


def test_the_last_state_is_shown_even_when_its_time_has_not_come():
    stream, clock = Stream(), Clock()
    with view(stream, clock=clock) as progress:
        progress.update({}, 500)
        progress.update({"rollout/ep_rew_mean": 42.0}, 1000)
    first, last = stream.text.splitlines()
    assert " 50%" in first
    assert "100%  1,000/1,000 steps" in last
    assert "return 42.00" in last


def test_a_tag_left_out_keeps_its_value_and_nan_clears_it():
    stream, clock = Stream(), Clock()
    with view(stream, clock=clock) as progress:
        progress.update({"eval/mean_reward": 7.5, "train/explained_variance_mc": 0.25}, 100)
        clock.now += 10
        progress.update({"train/explained_variance_mc": math.nan}, 200)
    last = stream.text.splitlines()[-1]
    assert "eval 7.500" in last
    assert "ev(lam=1) -" in last


def test_the_rate_counts_only_this_process():
    stream, clock = Stream(), Clock()
    with view(stream, clock=clock, start_steps=900) as progress:
        clock.now += 10
        progress.update({}, 950)
    assert "5/s  0:10 left" in stream.text


@pytest.mark.parametrize(("terminal", "live"), [(True, True), (False, False)])
def test_auto_is_live_only_on_a_terminal(terminal, live):
    stream = Stream(terminal=terminal)
    with view(stream, mode="auto") as progress:
        progress.update(METRICS, 500)
    assert ("\x1b[" in stream.text) == live
    assert ("╭" in stream.text) == live


def test_auto_is_plain_on_a_dumb_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    stream = Stream(terminal=True)
    with view(stream, mode="auto") as progress:
        progress.update(METRICS, 500)
    assert "\x1b" not in stream.text


def test_live_draws_seldom_and_ends_on_the_last_state_with_the_cursor_back():
    stream, clock = Stream(terminal=True), Clock()
    with view(stream, mode="live", clock=clock) as progress:
        for step in range(1, 1001):
            clock.now += 0.01
            progress.update({}, step)
    assert stream.text.count("Hopper-v5") < 30
    assert "1,000 of 1,000 steps" in without_colours(stream.text)
    assert stream.text.rstrip().endswith("\x1b[?25h")


def test_messages_stand_above_the_live_part():
    stream = Stream(terminal=True)
    with view(stream, mode="live") as progress:
        progress.update(METRICS, 500)
        progress.message("saved [bold]checkpoints/last.pt[/bold]")
        progress.message("no episode ends", warning=True)
    text = stream.text
    assert "saved [bold]checkpoints/last.pt[/bold]" in text
    assert text.index("warning: no episode ends") < text.rindex("╭")


def test_off_is_silent_but_for_warnings():
    stream = Stream()
    with view(stream, mode="off") as progress:
        progress.message("plan: 10 iterations")
        progress.update(METRICS, 500)
        progress.message("no episode ends", warning=True)
    assert stream.text == "warning: no episode ends\n"


def test_stdout_stays_for_results(capsys):
    with ProgressView(1000, mode="plain", title="x") as progress:
        progress.message("hello")
        progress.update(METRICS, 10)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("hello\n  1%  10/1,000 steps")


@pytest.mark.parametrize("mode", ["plain", "live"])
def test_a_stream_that_goes_away_does_not_end_the_run(mode):
    class Broken(Stream):
        broken = False

        def write(self, text):
            if self.broken:
                raise BrokenPipeError
            return super().write(text)

    stream, clock = Broken(terminal=True), Clock()
    with view(stream, mode=mode, clock=clock) as progress:
        stream.broken = True
        for step in (1, 2, 3):
            clock.now += 10
            progress.update(METRICS, step)
            progress.message("still here")


def test_a_title_that_the_stream_cannot_encode_is_shown_with_marks():
    stream = Stream(encoding="ascii")
    with view(stream, title="Läufer") as progress:
        progress.message("Läufer")
        progress.update(METRICS, 10)
    assert stream.text.startswith("L?ufer\n")


def test_an_error_inside_ends_the_live_view_and_passes_through():
    stream = Stream(terminal=True)
    progress = view(stream, mode="live")
    with pytest.raises(KeyboardInterrupt), progress:
        raise KeyboardInterrupt
    assert stream.text.rstrip().endswith("\x1b[?25h")
