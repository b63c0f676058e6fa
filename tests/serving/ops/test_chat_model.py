"""Where the chat model is, and what can go wrong while it is made. The download itself is tried by hand."""

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from lessons_lib.models.chat_model import chat_model_folder, chat_model_path
from tools import chat_model
from tools.setup_errors import SetupError

NAME = "SmolLM2-135M-Instruct"


@pytest.mark.parametrize(
    "environment, platform, expected",
    [
        ({"LESSONS_CACHE": "/x"}, "linux", Path("/x") / NAME),
        ({"XDG_CACHE_HOME": "/c"}, "linux", Path("/c/lessons") / NAME),
        ({"XDG_CACHE_HOME": "relative"}, "linux", Path.home() / ".cache/lessons" / NAME),
        ({}, "linux", Path.home() / ".cache/lessons" / NAME),
        ({}, "darwin", Path.home() / "Library/Caches/lessons" / NAME),
        ({"LOCALAPPDATA": "/l"}, "win32", Path("/l/lessons") / NAME),
    ],
)
def test_where_it_is(environment, platform, expected):
    assert chat_model_folder(environment, platform) == expected


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LESSONS_CACHE", str(tmp_path / "cache"))
    return chat_model_folder()


def pretend(monkeypatch, fails=None):
    """Neither download nor convert anything."""
    monkeypatch.setattr(chat_model, "download", lambda work: work)

    def convert(packages, target):
        target.mkdir()
        (target / "config.json").write_text("{}")
        if fails:
            raise fails

    monkeypatch.setattr(chat_model, "convert", convert)


def test_it_appears_in_one_piece_and_once(folder, monkeypatch, capsys):
    pretend(monkeypatch)
    assert chat_model_path() is None
    assert chat_model.main([]) == 0
    assert chat_model_path() == folder
    assert [each.name for each in folder.parent.iterdir()] == [NAME]
    monkeypatch.setattr(chat_model, "download", None)  # would fail
    assert chat_model.main([]) == 0
    assert str(folder) in capsys.readouterr().out
    assert chat_model.main(["--remove"]) == 0
    assert chat_model_path() is None


@pytest.mark.parametrize(
    "error, words",
    [
        (OSError(28, "No space left on device"), ["disk is full", "LESSONS_CACHE"]),
        (RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)"), ["disk is full"]),
        (PermissionError(13, "Permission denied"), ["cannot be written", "LESSONS_CACHE"]),
    ],
)
def test_a_failure_leaves_nothing(error, words, folder, monkeypatch, capsys):
    pretend(monkeypatch, error)
    assert chat_model.main([]) == 1
    said = capsys.readouterr().err
    assert all(word in said for word in words) and "Traceback" not in said
    assert chat_model_path() is None and list(folder.parent.iterdir()) == []


def test_too_little_space_is_said_before_the_download(folder, monkeypatch, capsys):
    monkeypatch.setattr(chat_model, "download", None)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 10**6, 10**6))
    assert chat_model.main([]) == 1
    assert "1 MB free, and 600 MB are needed" in capsys.readouterr().err


def test_a_file_with_another_hash_is_not_used(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"abc")
    chat_model.check_hash(tmp_path / "a.gguf", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    with pytest.raises(SetupError, match="a.gguf has the sha256 ba7816bf"):
        chat_model.check_hash(tmp_path / "a.gguf", chat_model.GGUF_SHA256)


def test_every_package_is_pinned_with_its_hash():
    for line in chat_model.REQUIREMENTS.splitlines():
        name, _, digest = line.partition(" --hash=sha256:")
        assert "==" in name and len(digest) == 64
