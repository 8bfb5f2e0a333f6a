import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.image import imread

from ppo import plots
from ppo.csvlog import read_table
from ppo.episodes import Episode
from ppo.errors import UserError
from ppo.logger import RunLogger
from ppo.plots import learning_curve, running_mean, running_median, series


def make_run(run_dir, *, episodes=0, iterations=0, evaluations=False, weight=0.1):
    with RunLogger(run_dir, tensorboard=False) as log:
        log.log_episodes(
            [Episode(50 * (i + 1), 0, float(i), 50, "terminated") for i in range(episodes)]
        )
        for i in range(1, iterations + 1):
            metrics = {
                "train/explained_variance": 0.9,
                "train/explained_variance_mc": 0.25 * i,
                "train/bootstrap_weight": weight,
                "train/approx_kl": 0.01,
                "train/clip_fraction": 0.1,
            }
            if evaluations and i % 2:
                metrics |= {"eval/mean_reward": 10.0 * i, "eval/std_reward": 2.0}
            log.log(metrics, env_steps=100 * i)
    return run_dir


def axes_of(run_dir):
    """The drawn axes by their place: returns, critic, length, KL, clip fraction."""
    episodes = read_table(run_dir / "episodes.csv").rows
    progress = read_table(run_dir / "progress.csv").rows
    return plots._figure("title", episodes, progress).axes


def texts(axis):
    legend = axis.get_legend()
    labels = [text.get_text() for text in legend.get_texts()] if legend else []
    return [*(text.get_text() for text in axis.texts), *labels, axis.get_title(loc="left")]


@pytest.mark.parametrize(
    ("episodes", "iterations", "evaluations"),
    [(0, 0, False), (1, 0, False), (0, 1, False), (1, 1, True), (3, 5, True), (250, 5, False)],
)
def test_a_picture_comes_of_every_run(tmp_path, episodes, iterations, evaluations, monkeypatch):
    monkeypatch.setattr(plots, "_DPI", 30)
    run_dir = make_run(tmp_path, episodes=episodes, iterations=iterations, evaluations=evaluations)
    path = learning_curve(run_dir)
    assert path == tmp_path / "learning_curve.png"
    assert np.ptp(imread(path)) > 0
    assert not list(tmp_path.glob(".*"))


def test_returns_are_drawn_as_logged_with_their_mean_and_the_evaluations(tmp_path):
    axis = axes_of(make_run(tmp_path, episodes=150, iterations=4, evaluations=True))[0]
    dots, mean, *_ = axis.lines
    np.testing.assert_array_equal(dots.get_xdata(), 50.0 * np.arange(1, 151))
    np.testing.assert_array_equal(dots.get_ydata(), np.arange(150.0))
    assert mean.get_ydata()[-1] == np.arange(50, 150).mean()
    (bars,) = axis.containers
    np.testing.assert_array_equal(bars.lines[0].get_ydata(), [10.0, 30.0])
    (segments,) = bars.lines[2]
    np.testing.assert_array_equal(segments.get_segments()[0], [[100, 8], [100, 12]])


def test_the_critic_panel_has_both_curves_and_both_marks(tmp_path):
    axis = axes_of(make_run(tmp_path, iterations=5))[1]
    levels = [line.get_ydata()[0] for line in axis.lines if len(set(line.get_ydata())) == 1]
    assert {0.3, 0.5} <= set(levels)
    assert {"λ targets", "λ = 1 returns", "0.3", "0.5"} <= set(texts(axis))
    assert "healthy: recent median 0.75" in axis.get_title(loc="left")


def test_the_critic_panel_passes_no_verdict_on_returns_that_are_mostly_bootstrap(tmp_path):
    axis = axes_of(make_run(tmp_path, iterations=5, weight=0.7))[1]
    assert "(cannot tell)" in axis.get_title(loc="left")


def test_an_empty_run_says_so(tmp_path):
    axes = axes_of(make_run(tmp_path))
    assert "no episode has ended yet" in texts(axes[0])
    assert "nothing logged yet" in texts(axes[1])


def test_running_mean_and_median_use_what_there_is():
    values = np.array([4.0, 0.0, 2.0, 10.0])
    np.testing.assert_array_equal(running_mean(values, 3), [4.0, 2.0, 2.0, 4.0])
    np.testing.assert_array_equal(running_median(values, 3), [4.0, 2.0, 2.0, 2.0])
    assert running_mean(np.array([]), 3).shape == (0,)


def test_cells_that_are_empty_or_no_numbers_are_left_out():
    rows = [{"env_steps": "1", "a": "2"}, {"env_steps": "2"}, {"env_steps": "3", "a": "x"}]
    found = series(rows, "a")
    assert (found.x.tolist(), found.y.tolist()) == ([1.0], [2.0])


def test_a_run_killed_before_its_first_row_is_drawn_too(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "_DPI", 30)
    assert learning_curve(tmp_path).exists()


def test_a_folder_that_is_not_there_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="there is no run at"):
        learning_curve(tmp_path / "nowhere")


def test_drawing_leaves_matplotlib_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "_DPI", 30)
    before = dict(mpl.rcParams)
    learning_curve(make_run(tmp_path, episodes=2, iterations=2))
    assert dict(mpl.rcParams) == before
