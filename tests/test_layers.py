from importlinter.cli import lint_imports

from tests.runs import ROOT


def test_imports_go_down_only(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    status = lint_imports(config_filename="pyproject.toml", no_cache=True)
    said = capsys.readouterr().out
    assert status == 0, said
    assert " 0 kept" not in said
    assert "Imports go down only" in said
