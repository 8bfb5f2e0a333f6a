"""The configuration: what is read, what is refused, and the one line that says so."""

import math
import pickle
import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ppo import distributions
from ppo.config import Config, EnvConfig, PPOConfig, config_keys, from_mapping, load_config
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


# --- what is read -------------------------------------------------------------------------------


def test_minimal_file_gives_the_defaults(write):
    config = load_config(write(MINIMAL))
    assert config.env.id == "Hopper-v5"
    assert config.ppo.total_timesteps == 100_000
    assert (config.env.n_envs, config.ppo.n_steps, config.ppo.batch_size) == (8, 256, 64)
    assert (config.ppo.n_epochs, config.ppo.learning_rate) == (10, 3e-4)
    assert (config.ppo.gamma, config.ppo.gae_lambda, config.ppo.clip_range) == (0.99, 0.95, 0.2)
    assert config.ppo.clip_range_vf is None
    assert config.policy.hidden_sizes == (64, 64)
    assert config.compile == "auto"
    assert config.checkpoint.every == 100_000


def test_empty_sections_hold_their_defaults(write):
    config = load_config(write(MINIMAL + "critic:\neval:  # nothing set\nname:\n"))
    assert config.critic.learning_rate is None
    assert config.eval.episodes == 10


def test_overrides_win_in_their_order(with_overrides):
    config = with_overrides("ppo.gamma=0.9", "--ppo.gamma=0.8", "policy.hidden_sizes=[256,128]")
    assert config.ppo.gamma == 0.8
    assert config.policy.hidden_sizes == (256, 128)


def test_override_mends_a_bad_value_of_the_file(write):
    config = load_config(write(MINIMAL + "  gamma: 7\n"), ["ppo.gamma=0.5"])
    assert config.ppo.gamma == 0.5


def test_override_opens_a_section_that_the_file_lacks(with_overrides):
    config = with_overrides("critic.learning_rate=1e-3", "env.kwargs.ctrl_cost_weight=0.1")
    assert config.critic.learning_rate == 1e-3
    assert config.env.kwargs == {"ctrl_cost_weight": 0.1}


def test_override_null_clears_a_value(write):
    path = write(MINIMAL + "  target_kl: 0.01\n")
    assert load_config(path, ["ppo.target_kl=null"]).ppo.target_kl is None


def test_env_kwargs_are_read_as_a_person_means_them(write):
    text = """
env:
  id: Hopper-v5
  kwargs:
    healthy_z_range: [0.2, .inf]
    ctrl_cost_weight: 1e-3
    frame_skip: 4
    xml_file: hopper.xml
    terminate_when_unhealthy: true
    nothing: null
    quoted: "017"
    nested: {a: [1_000, -.inf], b: 2-legs}
ppo: {total_timesteps: 1e5}
"""
    kwargs = load_config(write(text)).env.kwargs
    assert kwargs == {
        "healthy_z_range": [0.2, math.inf],
        "ctrl_cost_weight": 0.001,
        "frame_skip": 4,
        "xml_file": "hopper.xml",
        "terminate_when_unhealthy": True,
        "nothing": None,
        "quoted": "017",
        "nested": {"a": [1000, -math.inf], "b": "2-legs"},
    }
    assert isinstance(kwargs["frame_skip"], int)


def test_override_of_one_env_kwarg_keeps_the_others(write):
    path = write("env: {id: A-v0, kwargs: {a: 1, b: {c: 2, d: 3}}}\nppo: {total_timesteps: 1e5}\n")
    config = load_config(path, ["env.kwargs.b.c=1e-3", "env.kwargs.e=[1, x]"])
    assert config.env.kwargs == {"a": 1, "b": {"c": 0.001, "d": 3}, "e": [1, "x"]}
    assert load_config(path, ["env.kwargs={z: 1}"]).env.kwargs == {"z": 1}


@pytest.mark.parametrize("word", ["auto", "on", "off"])
def test_on_and_off_stay_words(with_overrides, word):
    assert with_overrides(f"compile={word}").compile == word


def test_byte_order_mark_and_windows_line_ends(write):
    text = "\ufeff" + MINIMAL.replace("\n", "\r\n")
    assert load_config(write(text)).env.id == "Hopper-v5"


def test_models_are_frozen_and_travel_between_processes(write):
    config = load_config(write(MINIMAL))
    with pytest.raises(ValidationError):
        config.ppo.gamma = 0.5
    assert pickle.loads(pickle.dumps(config)) == config


# --- numbers ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),
        ("3E-4", 3e-4),
        ("1e-03", 1e-3),
        ("+.5", 0.5),
        ("1", 1.0),
        ("0.000_3", None),
        ("1.", 1.0),
        ("017", None),
        ("0.5.", None),
        ("0x1", None),
        ("1e400", None),
        (".inf", None),
        (".nan", None),
        ("nan", None),
        ("'0.5'", None),
        ('"0.5"', None),
        ("0:30", None),
        ("true", None),
        ("on", None),
        ("null", None),
        ("2026-01-01", None),
        ("50%", None),
        ("0,5", None),
        ("[0.5]", None),
        ("{a: 1}", None),
    ],
)
def test_what_is_a_number_for_a_float(write, text, value):
    path = write(MINIMAL + f"  learning_rate: {text}\n")
    if value is None:
        with pytest.raises(ConfigError, match=r"^x\.yaml:5: ppo\.learning_rate: must be a "):
            load_config(path)
    else:
        assert load_config(path).ppo.learning_rate == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("512", 512),
        ("1e3", 1000),
        ("1_000", 1000),
        ("1_0_0", 100),
        ("1.5e3", 1500),
        ("100.0", 100),
        ("0100", None),
        ("0o100", None),
        ("0x100", None),
        ("0b1111111", None),
        ("1:40", None),
        ("1__000", None),
        ("1000_", None),
        ("100.5", None),
        ("1e-3", None),
        (".inf", None),
        ("yes", None),
        ("true", None),
        ("'100'", None),
        ("!!int 100", None),
        ("9" * 5000, None),
    ],
)
def test_what_is_a_number_for_a_whole_number(write, text, value):
    path = write(MINIMAL + f"  n_steps: {text}\n")
    if value is None:
        with pytest.raises(ConfigError, match=r"^x\.yaml:5: "):
            load_config(path)
    else:
        n_steps = load_config(path).ppo.n_steps
        assert (n_steps, type(n_steps)) == (value, int)


@pytest.mark.parametrize("text", ["yes", "no", "on", "off", "y", "1", "0", "'true'", "null"])
def test_only_true_and_false_are_booleans(refusal, text):
    assert re.match(
        r"--normalize\.rewards: must be true or false, not ",
        refusal(MINIMAL, f"normalize.rewards={text}"),
    )


@pytest.mark.parametrize(
    "text", ["017", "1:30", "yes", "On", "0x1F", "2026-01-01", "1__0", "nan", "inf", "1e400", "09"]
)
def test_doubtful_env_kwargs_are_refused_unless_quoted(refusal, with_overrides, text):
    message = refusal(MINIMAL, f"env.kwargs.a=[1, {text}]")
    assert message.startswith(
        f"--env.kwargs.a: env.kwargs.a[1]: readers of YAML disagree on what {text}"
    )
    assert with_overrides(f"env.kwargs.a='{text}'").env.kwargs == {"a": text}


# --- round trip ---------------------------------------------------------------------------------

plain_data = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False),
        st.text(max_size=12),
        st.sampled_from(
            ["017", "yes", "null", "~", "1e6", "1:30", "a: b", "# c", "-", "<<", "3e-4"]
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
kwargs_names = st.text(min_size=1, max_size=6)


@st.composite
def configs(draw) -> Config:
    positive = st.floats(min_value=1e-300, max_value=1e300)
    fraction = st.floats(0.0, 1.0)
    n_envs = draw(st.integers(1, 100))
    n_steps = draw(st.integers(2, 5000))
    schedule = draw(st.sampled_from(["constant", "linear", "adaptive_kl"]))
    rate = draw(st.floats(1e-5, 1e-2))
    mapping = {
        "name": draw(st.none() | st.from_regex(r"[A-Za-z0-9_][\w.+=@-]{0,20}", fullmatch=True)),
        "seed": draw(st.integers(0, 2**32 - 1)),
        "device": draw(st.sampled_from(["auto", "cpu", "cuda", "cuda:3"])),
        "compile": draw(st.sampled_from(["auto", "on", "off"])),
        "runs_dir": draw(st.text(min_size=1, max_size=12).filter(lambda text: "\0" not in text)),
        "env": {
            "id": "module:Env-v0",
            "n_envs": n_envs,
            "kwargs": draw(st.dictionaries(kwargs_names, plain_data, max_size=3)),
        },
        "policy": {"hidden_sizes": draw(st.lists(st.integers(1, 512), max_size=4))},
        "normalize": {"rewards": draw(st.booleans()), "clip": draw(positive)},
        "ppo": {
            "total_timesteps": draw(st.integers(2**20, 2**53)),
            "n_steps": n_steps,
            "batch_size": draw(st.integers(2, n_steps * n_envs)),
            "learning_rate": rate,
            "lr_schedule": schedule,
            "desired_kl": draw(positive) if schedule == "adaptive_kl" else None,
            "gamma": draw(fraction),
            "gae_lambda": draw(fraction),
            "target_kl": draw(st.none() | positive),
        },
        "critic": {"learning_rate": draw(st.none() | positive)},
    }
    return from_mapping(mapping, source="drawn")


@many
@given(config=configs())
def test_yaml_and_mapping_round_trip(write, config):
    assert load_config(write(config.to_yaml())) == config
    assert from_mapping(config.to_mapping(), source="checkpoint") == config
    assert yaml.safe_load(config.to_yaml()).keys() == config.to_mapping().keys()


def test_floats_round_trip_to_the_bit(write):
    config = from_mapping(
        {
            "env": {"id": "A-v0", "kwargs": {"x": 5e-324, "y": 0.1 + 0.2, "z": -0.0}},
            "ppo": {"total_timesteps": 1000, "gamma": 1 - 2**-53, "learning_rate": 1e-05},
        },
        source="here",
    )
    back = load_config(write(config.to_yaml()))
    assert back.ppo.gamma == 1 - 2**-53
    assert {k: v.hex() for k, v in back.env.kwargs.items()} == {
        "x": "0x0.0000000000001p-1022",
        "y": "0x1.3333333333334p-2",
        "z": "-0x0.0p+0",
    }


def test_mapping_is_plain_python_with_every_key(write):
    config = load_config(write(MINIMAL))
    mapping = config.to_mapping()
    leaves = {
        f"{name}.{key}" if isinstance(value, dict) else name
        for name, value in mapping.items()
        for key in (value if isinstance(value, dict) else [""])
    }
    sections = {key.split(".")[0] for key in config_keys() if "." in key}
    assert leaves == set(config_keys()) - sections
    assert mapping["policy"]["hidden_sizes"] == [64, 64]


def test_from_mapping_takes_overrides_and_leaves_its_argument_alone(write):
    mapping = load_config(write(MINIMAL)).to_mapping()
    longer = from_mapping(mapping, "last.pt", ["ppo.total_timesteps=2e5", "env.kwargs.a=1"])
    assert longer.ppo.total_timesteps == 200_000
    assert mapping["ppo"]["total_timesteps"] == 100_000
    assert mapping["env"]["kwargs"] == {}


def test_from_mapping_names_its_source():
    with pytest.raises(ConfigError, match=r"^last\.pt: ppo\.gamma: must be at most 1, not 2$"):
        from_mapping(
            {"env": {"id": "A-v0"}, "ppo": {"total_timesteps": 1000, "gamma": 2}}, source="last.pt"
        )
    with pytest.raises(ConfigError, match=r"^last\.pt: must hold sections"):
        from_mapping([1], source="last.pt")  # type: ignore[arg-type]


def test_env_kwargs_are_plain_data():
    with pytest.raises(ValidationError, match="not plain data"):
        EnvConfig(id="A-v0", kwargs={"a": object()})
    with pytest.raises(
        ConfigError, match=r"^here: env\.kwargs\.a\[1\]: must be plain data .* not a "
    ):
        from_mapping(
            {"env": {"id": "A", "kwargs": {"a": [1, {2}]}}, "ppo": {"total_timesteps": 1e3}}, "here"
        )
    assert EnvConfig(id="A-v0", kwargs={"range": (0.2, 1.0)}).kwargs == {"range": [0.2, 1.0]}


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
