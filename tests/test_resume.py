import json
import shutil
import signal
from itertools import pairwise

import pytest

from ppo import loop
from ppo.config import load_config
from ppo.envs import EnvBatch
from ppo.errors import CheckpointError, NonFiniteError, UserError
from ppo.interrupts import Interrupted
from ppo.train import resume, train
from tests.runs import (
    checkpoint,
    column,
    command,
    config,
    config_file,
    differences,
    files,
    only_run,
    rows,
    scalars,
    start,
)

NEVER = 10**9


@pytest.fixture(autouse=True)
def curve_is_not_drawn(monkeypatch):
    monkeypatch.setattr(loop.TrainingLoop, "_draw", lambda _: None)


def without_clock(run_dir):
    """The rows of progress.csv, but for what depends on the machine's speed."""
    return [
        {tag: cell for tag, cell in row.items() if tag not in ("time/fps", "time/time_elapsed")}
        for row in rows(run_dir)
    ]


# --- as if nothing had happened ---


@pytest.mark.parametrize(
    "schedule",
    [
        ("ppo.lr_schedule=linear", "ppo.clip_range_schedule=linear", "eval.every=64"),
        ("ppo.lr_schedule=adaptive_kl", "ppo.ent_coef=0.01", "eval.every=0"),
    ],
    ids=["linear", "adaptive_kl"],
)
def test_where_the_environments_state_cannot_matter_resumed_is_bit_equal_to_straight(
    tmp_path, schedule
):
    """Halting's episodes end where rollouts do, and start the same whatever the seed."""

    def settings(folder, at):
        kwargs = {"how": "SIGINT", "at": at}
        budget = "ppo.total_timesteps=320"
        return config(tmp_path / folder, "tests.runs:Halting-v0", budget, *schedule, kwargs=kwargs)

    straight = train(settings("straight", NEVER)).run_dir
    with pytest.raises(Interrupted):
        train(settings("stopped", 100))  # in the seventh rollout of sixteen vector steps
    stopped = only_run(tmp_path / "stopped")
    assert checkpoint(stopped)["counters"]["env_steps"] == 192
    assert resume(stopped).env_steps == 320

    assert set(differences(checkpoint(straight), checkpoint(stopped))) == {
        "config.runs_dir",
        "config.env.kwargs.at",
        "counters.resumes",
    }
    assert without_clock(stopped) == without_clock(straight)
    assert rows(stopped, "episodes.csv") == rows(straight, "episodes.csv")
    assert len(without_clock(straight)) == 10


def test_a_linear_schedule_goes_on_where_it_was(tmp_path):
    settings = config(
        tmp_path,
        "tests.runs:Halting-v0",
        "ppo.total_timesteps=320",
        "ppo.learning_rate=1e-3",
        "ppo.lr_schedule=linear",
        kwargs={"how": "SIGTERM", "at": 90},
    )
    with pytest.raises(Interrupted):
        train(settings)
    run_dir = only_run(tmp_path)
    assert len(rows(run_dir)) == 5
    resume(run_dir)
    rates = column(run_dir, "train/learning_rate")
    assert rates == pytest.approx([1e-3 * k / 10 for k in range(10, 0, -1)])
    assert rates[5] == pytest.approx(5e-4)


def test_no_seed_of_an_environment_is_used_again(tmp_path, monkeypatch):
    given = []
    original = EnvBatch.reset

    def reset(batch, seeds):
        given.append(list(seeds))
        return original(batch, seeds)

    monkeypatch.setattr(EnvBatch, "reset", reset)
    run_dir = train(config(tmp_path, "Noise")).run_dir
    for total in (128, 192):
        resume(run_dir, [f"ppo.total_timesteps={total}"])
    training, evaluation = given[0::2], given[1::2]
    assert len(training) == len(evaluation) == 3
    assert evaluation[0] == evaluation[1] == evaluation[2]
    seeds = [*training[0], *training[1], *training[2], *evaluation[0]]
    assert len(set(seeds)) == len(seeds) == 8


def test_after_a_kill_nothing_zigzags_and_speed_is_of_the_new_process(tmp_path):
    """Killed in the eighth iteration; the last checkpoint is of the sixth."""
    file = config_file(
        tmp_path,
        "tests.runs:Halting-v0",
        "ppo.total_timesteps=352",
        "checkpoint.every=64",
        "eval.every=64",
        "logging.tensorboard=true",
        kwargs={"how": "SIGKILL", "at": 120},
    )
    with start("train", file, cwd=tmp_path) as process:
        process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    run_dir = only_run(tmp_path)
    assert [row["env_steps"] for row in rows(run_dir)][-1] == "224"
    assert checkpoint(run_dir)["counters"]["env_steps"] == 192

    result = resume(run_dir)
    assert result.env_steps == 352
    assert [int(row["env_steps"]) for row in rows(run_dir)] == list(range(32, 353, 32))
    assert [
        (int(row["env_steps"]), row["env"], row["length"]) for row in rows(run_dir, "episodes.csv")
    ] == [(steps, env, "16") for steps in range(32, 353, 32) for env in "01"]
    points = scalars(run_dir)
    assert [step for step, _ in points["eval/mean_reward"]] == [64, 128, 192, 256, 320, 352][:5]
    for tag, series in points.items():
        assert all(earlier < later for (earlier, _), (later, _) in pairwise(series)), tag
        assert [value for _, value in series] == pytest.approx(column(run_dir, tag), rel=1e-6), tag
    own_steps = [steps - 192 for steps in range(224, 353, 32)]
    assert column(run_dir, "time/fps")[6:] == pytest.approx(
        [
            steps / seconds
            for steps, seconds in zip(
                own_steps, column(run_dir, "time/time_elapsed")[6:], strict=True
            )
        ],
        rel=1e-6,
    )
    starts = json.loads((run_dir / "provenance.json").read_text())["starts"]
    assert [entry["env_steps"] for entry in starts] == [0, 192]


# --- a finished run ---


def test_a_finished_run_is_refused_and_told_how_to_go_on(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    before = files(run_dir)
    done = command("resume", run_dir)
    assert done.status == 1
    assert done.error_line == (
        f"ppo: {run_dir}: finished at 64 of 64 env steps; extend it with --ppo.total_timesteps 128"
    )
    assert command("resume", run_dir, "--ppo.total_timesteps", 63).status == 1
    assert files(run_dir) == before


@pytest.mark.parametrize("left", [None, "{", "[]", '{"env_steps": 32}'])
def test_a_run_without_its_last_evaluation_makes_it_up(tmp_path, left):
    first = train(config(tmp_path))
    kept = first.run_dir / "evaluation.json"
    if left is None:
        kept.unlink()
    else:
        kept.write_text(left)
    progress = (first.run_dir / "progress.csv").read_bytes()
    done = command("resume", first.run_dir, "--json")
    assert done.status == 0
    assert json.loads(done.out)["evaluation"] == first.evaluation.summary()
    assert json.loads(kept.read_text())["returns"] == first.evaluation.returns.tolist()
    assert (first.run_dir / "progress.csv").read_bytes() == progress
    assert "finished at 64 of 64" in command("resume", first.run_dir).error_line


def test_an_extension_must_go_beyond_what_is_done(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    done = command("resume", run_dir, "--ppo.total_timesteps", "32")
    assert done.error_line.endswith("64 of 32 env steps; extend it with --ppo.total_timesteps 128")


def test_a_finished_run_is_extended_and_the_schedule_that_follows_is_printed(tmp_path):
    schedule = ("ppo.lr_schedule=linear", "ppo.learning_rate=1e-3")
    run_dir = train(config(tmp_path, "Echo", *schedule)).run_dir
    done = command(
        "resume", run_dir, "--ppo.total_timesteps=128", "--logging.progress", "plain", "--json"
    )
    assert done.status == 0
    assert (
        "resumed at env step 64: learning rate 0.0005, linear to 0 at 128;"
        " clip range 0.2, constant; ent coef 0, constant\n"
    ) in done.err
    assert "plan: 128 env steps, 64 of them done, the others in 2 iterations" in done.err
    assert json.loads(done.out)["env_steps"] == 128
    assert column(run_dir, "train/learning_rate") == pytest.approx([1e-3, 5e-4, 5e-4, 2.5e-4])
    assert load_config(run_dir / "config.yaml").ppo.total_timesteps == 128
    assert checkpoint(run_dir)["config"]["ppo"]["total_timesteps"] == 128


def test_an_extended_run_whose_last_rollout_was_short_goes_on_from_there(tmp_path):
    run_dir = train(config(tmp_path, "Echo", "ppo.total_timesteps=66")).run_dir
    done = command("resume", run_dir, "--ppo.total_timesteps", 130, "--logging.progress", "plain")
    assert "66 of them done, the others in 2 iterations" in done.err
    assert "too short to learn from" not in done.err
    assert [row["env_steps"] for row in rows(run_dir)] == ["32", "64", "66", "98", "130"]


# --- what cannot change, and what cannot be gone on from ---


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env.id", "CartPole-v1"),
        ("env.n_envs", 4),
        ("env.kwargs.length", 8),
        ("policy.hidden_sizes", "[16]"),
        ("policy.activation", "relu"),
        ("normalize.observations", "false"),
        ("seed", 1),
    ],
)
def test_what_shapes_the_agent_or_its_task_cannot_change(tmp_path, key, value):
    run_dir = train(config(tmp_path)).run_dir
    before = files(run_dir)
    done = command("resume", run_dir, "--ppo.total_timesteps", 128, f"--{key}", value)
    assert done.status == 2
    shown = key.removesuffix(".length")
    assert done.error_line.startswith(f"ppo: --{shown}: is ")
    assert "cannot become" in done.error_line
    assert files(run_dir) == before


def test_how_the_environments_run_may_change(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    assert resume(run_dir, ["ppo.total_timesteps=96", "env.backend=async"]).env_steps == 96


def test_a_typing_error_is_told_before_anything_is_touched(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    before = files(run_dir)
    done = command("resume", run_dir, "--ppo.total_timestep", 128)
    assert done.status == 2
    assert "ppo.total_timesteps" in done.error_line
    assert files(run_dir) == before


def test_a_broken_checkpoint_is_named(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    file = run_dir / "checkpoints" / "last.pt"
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=f"{file}: not a checkpoint that can be read"):
        resume(run_dir, ["ppo.total_timesteps=128"])


def test_a_run_without_a_checkpoint_is_refused(tmp_path):
    run_dir = train(config(tmp_path)).run_dir
    (run_dir / "checkpoints" / "last.pt").unlink()
    with pytest.raises(UserError, match="no checkpoint 'last' here; there is: none yet"):
        resume(run_dir)


@pytest.mark.parametrize("quantity", ["observation", "reward"])
def test_a_number_that_is_not_finite_leaves_the_last_good_state(tmp_path, quantity):
    """A rollout has sixteen vector steps; the fault comes in the second one after a resume."""
    kwargs = {"quantity": quantity, "at": 20, "value": "nan"}
    budget = ("ppo.total_timesteps=32", "eval.max_episode_steps=10")
    run_dir = train(config(tmp_path, "Sick", *budget, kwargs=kwargs)).run_dir
    twin = tmp_path / "twin"
    shutil.copytree(run_dir, twin)
    with pytest.raises(
        NonFiniteError,
        match=f"environment 0 returned a non-finite {quantity} at env step 72: .*; the run is"
        f" saved as it was at env step 64; go on with: ppo resume {run_dir}",
    ):
        resume(run_dir, ["ppo.total_timesteps=128"])
    resume(twin, ["ppo.total_timesteps=64"])  # the same, ended before the fault
    state, expected = checkpoint(run_dir), checkpoint(twin)
    parts = ("agent", "optimizer", "counters", "generators", "recent_episodes")
    assert not [path for part in parts for path in differences(state[part], expected[part])]


# --- what every start leaves at once ---


def test_a_run_that_is_killed_at_once_can_be_resumed_and_its_starts_are_told_apart(
    tmp_path, monkeypatch
):
    given = []
    original = EnvBatch.reset

    def reset(batch, seeds):
        given.append(list(seeds))
        raise NonFiniteError("stopped before the first step")

    run_dir = train(config(tmp_path)).run_dir
    monkeypatch.setattr(EnvBatch, "reset", reset)
    for _ in range(2):
        with pytest.raises(NonFiniteError):
            resume(run_dir, ["ppo.total_timesteps=128"])
    assert not set(given[0]) & set(given[1])
    monkeypatch.setattr(EnvBatch, "reset", original)
    assert resume(run_dir).env_steps == 128  # the extension is on disk, too


def test_a_run_that_is_stopped_before_its_first_step_starts_as_it_would_have(tmp_path, monkeypatch):
    given = []
    original = EnvBatch.reset

    def reset(batch, seeds):
        given.append(list(seeds))
        if len(given) == 1:
            raise NonFiniteError("stopped before the first step")
        return original(batch, seeds)

    monkeypatch.setattr(EnvBatch, "reset", reset)
    with pytest.raises(NonFiniteError):
        train(config(tmp_path))
    resume(only_run(tmp_path))
    assert given[1] == given[0]


def test_whether_to_compile_is_decided_by_the_whole_run(tmp_path, monkeypatch):
    """Otherwise the last iterations of a resumed run would round in another way."""
    asked = []
    original = loop.choose

    def choose(setting, *, gradient_steps, device):
        asked.append(gradient_steps)
        return original(setting, gradient_steps=gradient_steps, device=device)

    monkeypatch.setattr(loop, "choose", choose)
    settings = config(
        tmp_path,
        "tests.runs:Halting-v0",
        "ppo.total_timesteps=320",
        kwargs={"how": "SIGINT", "at": 100},
    )
    with pytest.raises(Interrupted):
        train(settings)
    resume(only_run(tmp_path))
    assert asked == [40, 40]


def test_a_new_learning_rate_reaches_an_adaptive_schedule_within_its_bounds(tmp_path):
    budget = "ppo.total_timesteps=96"
    adaptive = ("ppo.lr_schedule=adaptive_kl", "ppo.min_learning_rate=1e-4")
    run_dir = train(config(tmp_path)).run_dir
    resume(run_dir, [budget, *adaptive, "ppo.learning_rate=2e-3"])
    assert column(run_dir, "train/learning_rate")[2] == pytest.approx(2e-3)
    narrow = ("ppo.min_learning_rate=5e-3", "ppo.learning_rate=6e-3", "ppo.total_timesteps=128")
    resume(run_dir, narrow)
    assert column(run_dir, "train/learning_rate")[3] == pytest.approx(6e-3)


def test_what_was_selected_is_never_ahead_of_what_can_be_resumed(tmp_path):
    file = config_file(
        tmp_path,
        "tests.runs:Halting-v0",
        "ppo.total_timesteps=320",
        "eval.every=32",
        "checkpoint.every=0",
        kwargs={"how": "SIGKILL", "at": 40},
    )
    with start("train", file, cwd=tmp_path) as process:
        process.communicate(timeout=60)
    run_dir = only_run(tmp_path)
    best, last = (checkpoint(run_dir, name)["counters"]["env_steps"] for name in ("best", "last"))
    assert best <= last == 64


def test_whenever_a_run_is_killed_the_resumed_one_ends_as_if_it_had_not_been(tmp_path, monkeypatch):
    """Copies taken before and after every checkpoint written are what a kill would leave."""
    copies = tmp_path / "copies"
    original = loop.write_checkpoint

    def write(file, contents):
        for _ in range(2):
            shutil.copytree(file.parents[1], copies / f"{len(list(copies.glob('*'))):02}")
            original(file, contents)

    copies.mkdir()
    settings = config(
        tmp_path,
        "InvertedPendulum-v5",
        *("ppo.total_timesteps=192", "eval.every=64", "checkpoint.every=64", "checkpoint.keep=9"),
        backend="mujoco",
        kwargs={},
    )
    with monkeypatch.context() as patched:
        patched.setattr(loop, "write_checkpoint", write)
        straight = train(settings).run_dir
    killed = [copy for copy in sorted(copies.iterdir()) if _started(copy)]
    assert len(killed) > 12
    for run_dir in killed:
        if checkpoint(run_dir)["counters"]["evaluated_at"] < 192:
            resume(run_dir)
        assert without_clock(run_dir) == without_clock(straight)
        assert rows(run_dir, "episodes.csv") == rows(straight, "episodes.csv")
        for name in ("last", "best", "step_64", "step_128", "step_192"):
            differing = differences(checkpoint(run_dir, name), checkpoint(straight, name))
            assert set(differing) <= {"counters.resumes"}


def _started(run_dir):
    """A checkpoint of its environments is there: before that, episodes start on new seeds."""
    file = run_dir / "checkpoints" / "last.pt"
    return file.exists() and checkpoint(run_dir)["environments"] is not None


def test_a_run_stopped_in_the_evaluation_at_its_end_can_make_it_up(tmp_path, monkeypatch):
    original = loop.evaluate_agent

    def stopped(*_, **__):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(loop, "evaluate_agent", stopped)
    file = config_file(tmp_path, "Echo", "eval.every=64")
    done = command("train", file)
    run_dir = only_run(tmp_path)
    assert done.status == 130
    assert done.err.endswith(f"at env step 64; go on with: ppo resume {run_dir}\n")
    assert "eval/mean_reward" not in rows(run_dir)[0]
    monkeypatch.setattr(loop, "evaluate_agent", original)
    assert command("resume", run_dir).status == 0
    assert len(column(run_dir, "eval/mean_reward")) == 1
    assert (run_dir / "checkpoints" / "best.pt").exists()
    assert "finished at 64 of 64" in command("resume", run_dir).error_line
