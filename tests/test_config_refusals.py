"""Configurations that are refused, and the one line that says why."""

import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ppo import distributions
from ppo.config import PPOConfig, load_config
from ppo.errors import ConfigError

MINIMAL = "env:\n  id: Hopper-v5\nppo:\n  total_timesteps: 100_000\n"
many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes a file into an empty working folder, so that messages hold a short name."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str | bytes, name: str = "x.yaml") -> str:
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        return name

    return write_file


@pytest.fixture
def refusal(write):
    """The message that a file, or the minimal file with overrides, is refused with."""

    def message(text: str | bytes = MINIMAL, *overrides: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(write(text), overrides)
        line = str(caught.value)
        assert len(line.splitlines()) == 1
        return line

    return message


@pytest.fixture
def with_overrides(write):
    return lambda *overrides: load_config(write(MINIMAL), overrides)


# --- the one line -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  gae_lamda: 0.9", "x.yaml:5: ppo.gae_lamda: unknown key; did you mean ppo.gae_lambda?"),
        ("gamma: 0.9", "x.yaml:5: gamma: unknown key; did you mean ppo.gamma?"),
        ("  seed: 1", "x.yaml:5: ppo.seed: unknown key; did you mean seed?"),
        ("  lr: 1", "x.yaml:5: ppo.lr: unknown key; did you mean ppo.learning_rate?"),
        ("  clip: 1", "x.yaml:5: ppo.clip: unknown key; did you mean ppo.clip_range?"),
        ("normalise: {}", "x.yaml:5: normalise: unknown key; did you mean normalize?"),
        (
            "  gamma: 1.5",
            "x.yaml:5: ppo.gamma: must be at most 1, not 1.5",
        ),
        (
            "  gamma: 017",
            "x.yaml:5: ppo.gamma: must be a number, not the text '017'; write it as 17, 0.5, 3e-4 "
            "or 1_000_000, without quotes",
        ),
        ("  n_steps: 0", "x.yaml:5: ppo.n_steps: must be at least 1, not 0"),
        ("  n_steps: 2.5", "x.yaml:5: ppo.n_steps: must be a whole number, not 2.5"),
        ("  clip_range: 0", "x.yaml:5: ppo.clip_range: must be greater than 0, not 0"),
        (
            "  lr_schedule: lineer",
            "x.yaml:5: ppo.lr_schedule: must be 'constant', 'linear' or 'adaptive_kl', not the "
            "text 'lineer'; did you mean linear?",
        ),
        ("compile: true", "x.yaml:5: compile: must be 'auto', 'on' or 'off', not true"),
        ("name: 3", "x.yaml:5: name: must be text, not 3; put it in quotes if it is meant"),
        ("policy: 3", "x.yaml:5: policy: must be a section of keys and values, not 3"),
        (
            "policy:\n  hidden_sizes:\n    - 64\n    - big",
            "x.yaml:8: policy.hidden_sizes[1]: must be a whole number, not the text 'big'; write "
            "it as 17, 0.5, 3e-4 or 1_000_000, without quotes",
        ),
        (
            "  total_timesteps: 5",
            "x.yaml:5: ppo.total_timesteps: duplicate key; it is set on line 4 already",
        ),
        ("ppo: {}", "x.yaml:5: ppo: duplicate key; it is set on line 3 already"),
        (
            "  desired_kl: 0.01\n  lr_schedule: linear",
            "x.yaml:5: ppo.desired_kl: belongs to ppo.lr_schedule adaptive_kl, but "
            "ppo.lr_schedule is linear; remove the one or change the other",
        ),
        (
            "  gamma: 2\n  gae_lambda: 2\n  n_step: 2",
            "x.yaml:7: ppo.n_step: unknown key; did you mean ppo.n_steps? (and 2 more)",
        ),
        (
            "  gae_lambda: 2\nseed: -1",
            "x.yaml:5: ppo.gae_lambda: must be at most 1, not 2 (and 1 more)",
        ),
    ],
)
def test_line_for_a_fault_in_the_file(refusal, line, message):
    assert refusal(MINIMAL + line + "\n") == message


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("ppo.gamma=1.5", "--ppo.gamma: must be at most 1, not 1.5"),
        ("ppo.gae_lamda=0.9", "--ppo.gae_lamda: unknown key; did you mean ppo.gae_lambda?"),
        ("learning_rate=1", "--learning_rate: unknown key; did you mean ppo.learning_rate?"),
        ("ppo.gamma.x=1", "--ppo.gamma.x: unknown key; did you mean ppo.gamma?"),
        (
            "ppo={gamma: 1}",
            "--ppo: is a section; set one of its keys, such as --ppo.total_timesteps",
        ),
        ("ppo.gamma", "--ppo.gamma: needs a value; null stands for none"),
        ("ppo.gamma=", "--ppo.gamma: needs a value; null stands for none"),
        ("name=#1", "--name: #1 is a comment to YAML; put the value in quotes"),
        ("name=a #1", "--name: #1 is a comment to YAML; put the value in quotes"),
        ("ppo.gamma=*a", "--ppo.gamma: alias *a: write the value out"),
        (
            "ppo.gamma=[",
            "--ppo.gamma: not YAML: expected the node content, but found '<stream end>'",
        ),
        (
            "env.kwargs={a: 1, a: 2}",
            "--env.kwargs: env.kwargs.a: duplicate key; it is set on line 1 already",
        ),
        (
            "env.kwargs.max_episode_steps=9",
            "--env.kwargs.max_episode_steps: not an argument of the environment: set "
            "env.max_episode_steps instead",
        ),
        *(
            (
                f"{key}={value}",
                f"--{key}: must be between 1.2e-38 and 3.4e+38, which float32 can hold,"
                f" not {value}",
            )
            for key, value in (
                ("ppo.learning_rate", "1e+39"),
                ("ppo.learning_rate", "1e-60"),
                ("ppo.clip_range", "1e+39"),
                ("ppo.ent_coef", "1e+300"),
                ("ppo.vf_coef", "1e-300"),
                ("normalize.clip", "1e+39"),
                ("critic.learning_rate", "1e-39"),
            )
        ),
        (
            "policy.hidden_sizes=[64, 0]",
            "--policy.hidden_sizes: policy.hidden_sizes[1]: must be at least 1, not 0",
        ),
    ],
)
def test_line_for_a_fault_in_an_override(refusal, override, message):
    assert refusal(MINIMAL, override) == message


def test_override_below_a_value_of_the_file(refusal):
    text = MINIMAL.replace("Hopper-v5", "Hopper-v5\n  kwargs: {a: 3}")
    message = "--env.kwargs.a.b: env.kwargs.a is 3, so it has no keys to set"
    assert refusal(text, "env.kwargs.a.b=1") == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x.yaml: is empty; set at least env.id and ppo.total_timesteps"),
        ("# nothing\n", "x.yaml: is empty; set at least env.id and ppo.total_timesteps"),
        ("\n- 1\n- 2\n", "x.yaml:2: must hold sections such as env: and ppo:, not a list"),
        ("hello", "x.yaml:1: must hold sections such as env: and ppo:, not the text 'hello'"),
        ("seed: 1\n", "x.yaml: env.id: required, but missing (and 1 more)"),
        (
            "env:\n  n_envs: 4\nppo:\n  total_timesteps: 1e5\n",
            "x.yaml:1: env.id: required, but missing",
        ),
        (
            "env:\n  idd: A-v0\n",
            "x.yaml:2: env.idd: unknown key; did you mean env.id? (and 2 more)",
        ),
        ("a: 1\nb: [1\nc: 2\n", "x.yaml:3: not YAML: expected ',' or ']', but got ':'"),
        (
            "a:\n\tb: 1\n",
            "x.yaml:2: not YAML: found character '\\t' that cannot start any token",
        ),
        ("a: 1\n---\nb: 1\n", "x.yaml:2: not YAML: but found another document"),
        ("a: 1\nb: \x00\n", "x.yaml:2: not YAML: a character 0x0000"),
        (b"a: 1\n\n# caf\xe9\n", "x.yaml:3: not UTF-8 text: the byte 0xe9"),
        ("a: &x {b: 1}\nc: *x\n", "x.yaml:2: alias *x: write the value out"),
        ("a: &x [*x]\n", "x.yaml:1: alias *x: write the value out"),
        ("a: 1\n? [1, 2]\n: 3\n", "x.yaml:2: a key must be text; put it in quotes if it is meant"),
        ("1: 2\n", "x.yaml:1: a key must be text; put it in quotes if it is meant"),
        ("a: " + "[" * 5000 + "\n", "x.yaml:1: not YAML: nested too deeply"),
        (
            '"a\\nb": 1\nenv: {id: A-v0}\nppo: {total_timesteps: 1e5}\n',
            "x.yaml:1: a\\nb: unknown key; the top level holds name, seed, device, compile, "
            "torch_threads, runs_dir, env, policy, normalize, ppo, critic, eval, checkpoint, "
            "logging",
        ),
    ],
)
def test_line_for_a_file_that_is_no_configuration(refusal, text, message):
    assert refusal(text) == message


def test_files_that_cannot_be_read(write, tmp_path):
    write(MINIMAL, "hopper.yaml")
    (tmp_path / "folder.yaml").mkdir()
    for name, message in {
        "hoper.yaml": "hoper.yaml: no such file; did you mean hopper.yaml?",
        "nowhere/x.yml": "nowhere/x.yml: no such file",
        "folder.yaml": "folder.yaml: cannot be read: Is a directory",
        "hopper.yaml/x": "hopper.yaml/x: cannot be read: Not a directory",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load_config(name)
        assert str(caught.value) == message


@many
@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_any_text_is_refused_in_one_line(write, text):
    path = write(MINIMAL)
    for source, overrides in (
        (write(MINIMAL + text, "y.yaml"), []),
        (path, [text]),
        (path, [f"name={text}"]),
        (path, [f"env.kwargs.{text}=1"]),
    ):
        try:
            message = f"loaded {load_config(source, overrides).seed}"
        except ConfigError as error:
            message = str(error)
        assert message.isprintable()


# --- combinations -------------------------------------------------------------------------------

ADAPTIVE = "ppo.lr_schedule=adaptive_kl"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["ppo.batch_size=2049"],
            "--ppo.batch_size: .* larger than the rollout, .* 256 \\* 8 = 2048",
        ),
        (["env.n_envs=1", "ppo.n_steps=63"], "--ppo.n_steps: ppo.batch_size 64 is larger"),
        (["env.n_envs=1", "ppo.n_steps=1"], "--ppo.n_steps: a rollout of one row"),
        (["ppo.batch_size=1"], "--ppo.batch_size: .* turns the advantage .* into 0"),
        (["ppo.total_timesteps=56"], "--ppo.total_timesteps: a run of 56 env steps .* never fills"),
        (["ppo.desired_kl=0.01"], "--ppo.desired_kl: belongs to ppo.lr_schedule adaptive_kl"),
        (["ppo.lr_schedule=linear", "ppo.max_learning_rate=1"], ".* ppo.lr_schedule is linear"),
        ([ADAPTIVE, "ppo.learning_rate=0.1"], "--ppo.learning_rate: .* outside of"),
        ([ADAPTIVE, "ppo.min_learning_rate=1e-3"], "--ppo.min_learning_rate: .* outside of"),
        ([ADAPTIVE, "ppo.max_learning_rate=1e-6"], "--ppo.max_learning_rate: .* is above"),
        (
            ["eval.n_envs=4"],
            "--eval.n_envs: .* eval.episodes 10 is not a multiple of eval.n_envs 4",
        ),
        (["eval.n_envs=20"], "--eval.n_envs: "),
        (["eval.n_envs=5", "eval.episodes=12"], "--eval.n_envs: "),
        (
            ["critic.min_explained_variance=1"],
            "--critic.min_explained_variance: must be less than 1, not 1",
        ),
        (["critic.min_explained_variance=-0.1"], ".* must be at least 0"),
        (["critic.gate=hold"], "--critic.gate: must be .*hold_policy"),
        (["critic.extra_value_epochs=0"], "--critic.extra_value_epochs: must be at least 1"),
        (
            ["critic.warmup_iterations=49"],
            "--critic.warmup_iterations: .* leaves nothing of the run's 49 iterations",
        ),
        (["critic.warmup_iterations=1", "ppo.vf_coef=0"], ".* with ppo.vf_coef 0 it does not"),
        (
            ["critic.gate=value_epochs", "ppo.vf_coef=0"],
            ".* value_epochs updates .* does not learn",
        ),
        (["policy.log_std_init=-6"], "--policy.log_std_init: must be at least -5, not -6"),
        (["name=../x"], "--name: becomes part of a folder's name"),
        (["device=gpu"], "--device: must be auto, cpu, cuda or cuda:N, not the text 'gpu'"),
        (["env.id='Hopper v5'"], "--env.id: must not contain white space"),
        (["env.id=''"], "--env.id: must not be empty"),
        (["seed=-1"], "--seed: must be at least 0"),
        (["checkpoint.keep=-1"], "--checkpoint.keep: must be at least 0"),
    ],
)
def test_combinations_and_values_that_cannot_work(refusal, overrides, message):
    line = refusal(MINIMAL, *overrides)
    assert re.match(message, line), line


@pytest.mark.parametrize(
    "overrides",
    [
        ["ppo.batch_size=2048"],
        ["ppo.total_timesteps=57"],  # 64 in whole steps of 8 environments: one minibatch
        ["ppo.batch_size=1", "ppo.normalize_advantage=rollout"],
        ["ppo.batch_size=1", "ppo.normalize_advantage=none"],
        ["env.n_envs=1", "ppo.n_steps=129"],
        ["eval.n_envs=10"],
        ["ppo.gamma=1", "ppo.gae_lambda=0"],
        ["ppo.desired_kl=null"],
        ["policy.hidden_sizes=[]"],
    ],
)
def test_combinations_that_work(with_overrides, overrides):
    assert with_overrides(*overrides).env.id == "Hopper-v5"


def test_adaptive_kl_has_settings_under_its_own_schedule_only(with_overrides):
    assert with_overrides().ppo.adaptive_kl is None
    settings = with_overrides(ADAPTIVE, "ppo.desired_kl=0.02").ppo.adaptive_kl
    assert settings is not None
    assert (settings.desired_kl, settings.min_learning_rate) == (0.02, 1e-5)
    assert settings.max_learning_rate == 1e-2
    assert PPOConfig(total_timesteps=1, lr_schedule="adaptive_kl").desired_kl == 0.01


@pytest.mark.parametrize(
    ("episodes", "n_envs", "expected"), [(10, 8, 5), (20, 8, 5), (7, 4, 1), (3, 8, 3), (16, 8, 8)]
)
def test_evaluation_environments_divide_the_episodes(with_overrides, episodes, n_envs, expected):
    config = with_overrides(f"eval.episodes={episodes}", f"env.n_envs={n_envs}")
    assert config.eval_n_envs == expected


def test_log_std_init_stays_where_the_distribution_learns(with_overrides):
    low, high = distributions.LOG_STD_MIN, distributions.LOG_STD_MAX
    assert with_overrides(f"policy.log_std_init={low}").policy.log_std_init == low
    assert with_overrides(f"policy.log_std_init={high}").policy.log_std_init == high
