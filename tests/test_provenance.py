import json
import platform
import shutil
import subprocess
from datetime import UTC, datetime, timedelta
from importlib import metadata

import pytest

from ppo.errors import UserError
from ppo.provenance import provenance, source_state, write_provenance

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def checkout(tmp_path):
    """A package's folder inside a git checkout with one commit."""
    package = tmp_path / "checkout" / "ppo"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "gae.py").write_text("a = 1\n")
    (package.parent / ".gitignore").write_text("*.log\n")
    git(package.parent, "init", "-q")
    git(package.parent, "add", ".")
    git(package.parent, "commit", "-q", "-m", "first")
    return package


def test_it_says_what_ran_where_and_when():
    entry = provenance(["ppo", "train", "my configs/a.yaml"], env_steps=2048)
    assert entry.command == "ppo train 'my configs/a.yaml'"
    assert entry.env_steps == 2048
    assert entry.versions["python"] == platform.python_version()
    assert entry.versions["torch"] == metadata.version("torch")
    assert set(entry.versions) == {"python", "ppo", "torch", "gymnasium", "mujoco", "numpy"}
    assert entry.cpu
    assert entry.cpu_cores >= 1
    started = datetime.fromisoformat(entry.started)
    assert started.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - started) < timedelta(minutes=5)


@needs_git
def test_a_clean_checkout_has_its_commit_and_no_difference(checkout):
    state = source_state(checkout)
    assert state is not None
    assert state.commit == git(checkout, "rev-parse", "HEAD").strip()
    assert not state.dirty
    assert state.diff_sha256 is None


@needs_git
def test_every_change_of_the_source_changes_the_hash(checkout):
    (checkout / "ignored.log").write_text("noise")
    (checkout.parent / "notes.txt").write_text("not part of the package")
    assert source_state(checkout).dirty is False
    hashes = []
    for name, text in [
        ("gae.py", "a = 2\n"),
        ("gae.py", "a = 3\n"),
        ("new.py", "b = 1\n"),
        ("new.py", "b = 2\n"),
    ]:
        (checkout / name).write_text(text)
        state = source_state(checkout)
        assert state.dirty
        hashes.append(state.diff_sha256)
    assert len(set(hashes)) == 4
    assert source_state(checkout).diff_sha256 == hashes[-1]


@needs_git
def test_a_package_installed_inside_another_project_has_no_commit_of_its_own(checkout):
    installed = checkout.parent / ".venv" / "ppo"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text("")
    assert source_state(installed) is None


@needs_git
def test_variables_of_a_git_hook_do_not_lead_astray(checkout, monkeypatch, tmp_path):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert source_state(checkout) is not None


def test_without_git_there_is_no_source_state_and_no_error(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert source_state(tmp_path) is None
    assert provenance(["ppo"], package_dir=tmp_path).source is None


def test_a_resumed_run_adds_its_start(tmp_path):
    for steps in (0, 2048):
        path = write_provenance(tmp_path, provenance(["ppo"], env_steps=steps))
    assert path == tmp_path / "provenance.json"
    starts = json.loads(path.read_text())["starts"]
    assert [start["env_steps"] for start in starts] == [0, 2048]
    assert [found.name for found in tmp_path.iterdir()] == ["provenance.json"]


@pytest.mark.parametrize("text", ["", "[]", '{"starts": 3}', "{"])
def test_a_file_that_cannot_be_read_is_not_overwritten(tmp_path, text):
    path = tmp_path / "provenance.json"
    path.write_text(text)
    with pytest.raises(UserError, match="move it away"):
        write_provenance(tmp_path, provenance(["ppo"]))
    assert path.read_text() == text
