import errno
import os
from pathlib import Path

import pytest
import torch

from ppo.errors import CheckpointError
from ppo.storage import read_checkpoint, write_checkpoint

CONTENTS = {
    "tensor": torch.arange(20_000, dtype=torch.float64),
    "plain": {"words": ["a", None, True], "number": 1.5, 3: 10**30},
}


def test_contents_survive(tmp_path):
    file = tmp_path / "new" / "folder" / "last.pt"
    write_checkpoint(file, CONTENTS)
    contents = read_checkpoint(file)
    assert torch.equal(contents["tensor"], CONTENTS["tensor"])
    assert contents["plain"] == CONTENTS["plain"]
    assert [path.name for path in file.parent.iterdir()] == ["last.pt"]


def test_plain_torch_reads_it(tmp_path):
    write_checkpoint(tmp_path / "last.pt", CONTENTS)
    contents = torch.load(tmp_path / "last.pt", weights_only=True)
    assert contents["plain"] == CONTENTS["plain"]


class FullDisk:
    """A stream on a disk that takes so many more bytes."""

    def __init__(self, stream, room):
        self._stream, self._room = stream, room

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __enter__(self):
        self._stream.__enter__()
        return self

    def __exit__(self, *error):
        return self._stream.__exit__(*error)

    def write(self, data):
        size = memoryview(data).nbytes
        self._room -= size
        if self._room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._stream.write(data)


@pytest.mark.parametrize("room", [0, 100, 50_000, 160_300])
def test_a_full_disk_keeps_the_file_before_and_leaves_nothing(tmp_path, room, monkeypatch):
    file = tmp_path / "last.pt"
    write_checkpoint(file, {"which": "the one before"})
    before = file.read_bytes()
    opened = Path.open

    def open_on_a_full_disk(path, *args, **kwargs):
        stream = opened(path, *args, **kwargs)
        return FullDisk(stream, room) if path.parent == tmp_path else stream

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_on_a_full_disk)
        with pytest.raises(CheckpointError) as error:
            write_checkpoint(file, CONTENTS)
    message = str(error.value)
    assert "\n" not in message
    assert str(file) in message
    assert "No space left on device" in message
    assert file.read_bytes() == before
    assert read_checkpoint(file)["which"] == "the one before"
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failure_at_the_very_end_keeps_the_file_before(tmp_path, call, monkeypatch):
    file = tmp_path / "last.pt"
    write_checkpoint(file, {"which": "the one before"})

    def fail(*args):
        raise OSError(errno.EIO, "Input/output error")

    target = Path if call == "replace" else os
    with monkeypatch.context() as patch:
        patch.setattr(target, call, fail)
        with pytest.raises(CheckpointError, match="Input/output error"):
            write_checkpoint(file, CONTENTS)
    assert read_checkpoint(file)["which"] == "the one before"
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_an_interruption_leaves_nothing_half_written(tmp_path, monkeypatch):
    file = tmp_path / "last.pt"
    write_checkpoint(file, {"which": "the one before"})

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_checkpoint(file, CONTENTS)
    assert read_checkpoint(file)["which"] == "the one before"
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_a_folder_that_cannot_be_made_is_said_in_one_line(tmp_path):
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(CheckpointError, match="could not be written") as error:
        write_checkpoint(tmp_path / "taken" / "last.pt", CONTENTS)
    assert "\n" not in str(error.value)


class Payload:
    """What an attacker would put in a pickle."""

    def __reduce__(self):
        return (print, ("executed",))


def test_nothing_in_a_file_is_run(tmp_path, capsys):
    torch.save({"format": 1, "agent": Payload()}, tmp_path / "last.pt")
    with pytest.raises(CheckpointError, match="not a checkpoint that can be read") as error:
        read_checkpoint(tmp_path / "last.pt")
    assert "\n" not in str(error.value)
    assert "executed" not in capsys.readouterr().out


def test_files_that_are_no_checkpoints_are_refused(tmp_path):
    file = tmp_path / "last.pt"
    with pytest.raises(CheckpointError, match=r"last.pt: there is no checkpoint here"):
        read_checkpoint(file)
    with pytest.raises(CheckpointError, match="there is no checkpoint here"):
        read_checkpoint(tmp_path)
    for content in (b"", b"not a zip file", b"PK\x03\x04 broken"):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a checkpoint that can be read"):
            read_checkpoint(file)
    for other in ({"format": 2}, {}, [1, 2], torch.zeros(3)):
        torch.save(other, file)
        with pytest.raises(CheckpointError, match="not a checkpoint of this version"):
            read_checkpoint(file)


def test_a_file_that_was_cut_short_is_refused(tmp_path):
    file = tmp_path / "last.pt"
    write_checkpoint(file, CONTENTS)
    file.write_bytes(file.read_bytes()[:-2000])
    with pytest.raises(CheckpointError, match="not a checkpoint that can be read"):
        read_checkpoint(file)
