"""YAML as a person means it: properties of single values."""

import ast
import math
import re

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ppo.strict_yaml import dump, is_doubtful, parse, parse_plain

many = settings(max_examples=300, deadline=None)


@many
@given(st.one_of(st.floats(allow_nan=False), st.integers(-(10**30), 10**30)))
def test_every_number_is_read_back(number):
    value = parse(dump({"a": number})).value["a"]
    assert (value, type(value)) == (number, type(number))
    assert math.copysign(1, value) == math.copysign(1, number)


@many
@given(st.text(alphabet="0123456789_.eE+-:xobinfnaNyYtruesol \t", max_size=8))
def test_a_number_is_exactly_what_python_reads_in_decimal_without_leading_zeros(text):
    value = parse_plain(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
        return
    assert value == float(ast.literal_eval(text.lstrip("+"))) == float(text)
    assert not re.match(r"[-+]?0[0-9_]", text)


@many
@given(st.text(alphabet="0123456789_.eE+-:xobinfayYNtrusl", min_size=1, max_size=7))
def test_text_that_yaml_1_1_turns_into_something_else_is_doubtful(text):
    try:
        theirs = yaml.safe_load(f"a: {text}")["a"]
    except (yaml.YAMLError, ValueError, TypeError):
        return
    ours = parse_plain(text)
    if isinstance(ours, str):
        assert is_doubtful(text) or theirs == text
    elif not isinstance(theirs, str):
        assert ours == theirs
