"""The configuration: what is read, what is refused, and the one line that says so."""

import math
import pickle
import re

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from ppo.config import Config, EnvConfig, config_keys, from_mapping, load_config
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
    positive = st.floats(min_value=1e-37, max_value=1e38)
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
