"""The set-up script: which torch it chooses, when there is nothing to do, and what it says when it cannot."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def install(monkeypatch, tmp_path: Path):
    """The script as a module, with an environment of its own that is never really made."""
    spec = importlib.util.spec_from_file_location("install", ROOT / "minillm" / "install.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(module.sys, "platform", "linux")
    module.calls = []

    def in_venv(*arguments, quiet=False):
        module.calls.append(arguments)
        code = 1 if arguments[0] == "-c" else 0
        return subprocess.CompletedProcess(arguments, code, stdout="", stderr="")

    monkeypatch.setattr(module, "in_venv", in_venv)
    return module


def choose(install, monkeypatch, driver: bool, index: bool, plain: str) -> None:
    monkeypatch.setattr(install, "has_nvidia_driver", lambda: driver)
    monkeypatch.setattr(install, "cpu_index_answers", lambda: index)
    monkeypatch.setattr(install, "plain_pip_would_take", lambda torch: plain)
    install.install_torch("torch==2.13.0")


@pytest.mark.parametrize(("driver", "index", "plain", "from_index", "words"), [
    (True, True, "cuda", False, "with CUDA"),
    (False, True, "cpu", False, "a CPU build"),
    (False, True, "cuda", True, "PyTorch's index"),
    (False, True, "nothing", True, "PyTorch's index"),
    (False, False, "cuda", False, "warning: there is no NVIDIA driver"),
])
def test_a_cpu_build_is_preferred_without_a_driver(install, monkeypatch, capsys, driver, index, plain, from_index,
                                                   words) -> None:
    choose(install, monkeypatch, driver, index, plain)
    command = install.calls[-1]
    assert "torch==2.13.0" in command
    assert ("--index-url" in command) == from_index
    assert words in capsys.readouterr().out


def test_no_torch_to_be_had_is_one_line(install, monkeypatch, capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        choose(install, monkeypatch, False, False, "nothing")
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_torch_that_is_there_is_kept(install, monkeypatch, capsys) -> None:
    def in_venv(*arguments, quiet=False):
        install.calls.append(arguments)
        return subprocess.CompletedProcess(arguments, 0, stdout="2.99.0+cpu\n", stderr="")

    monkeypatch.setattr(install, "in_venv", in_venv)
    install.install_torch("torch==2.13.0")
    assert len(install.calls) == 1
    assert "2.99.0+cpu is in .venv already" in capsys.readouterr().out


def test_a_finished_installation_is_known_and_dev_brings_course(install) -> None:
    install.venv_python().parent.mkdir(parents=True)
    install.venv_python().touch()
    wanted = install.fingerprint("torch==2.13.0")
    assert not install.is_installed("course", wanted)
    install.stamp("course").write_text(wanted)
    assert install.is_installed("course", wanted)
    assert not install.is_installed("dev", wanted)
    install.stamp("dev").write_text(wanted)
    install.stamp("course").unlink()
    assert install.is_installed("course", wanted)
    assert not install.is_installed("course", install.fingerprint("torch==2.12.0"))


def test_an_interrupted_installation_leaves_no_stamp(install, monkeypatch) -> None:
    monkeypatch.setattr(install, "create_venv", lambda: None)
    monkeypatch.setattr(install, "install_torch", lambda torch: install.VENV.mkdir())
    monkeypatch.setattr(install, "in_venv", lambda *a, quiet=False: subprocess.CompletedProcess(a, 1))
    monkeypatch.setattr(install.sys, "argv", ["install.py", "--extra", "course"])
    with pytest.raises(SystemExit):
        install.main()
    assert list(install.VENV.iterdir()) == []


def test_an_old_python_is_refused(install, monkeypatch, capsys) -> None:
    monkeypatch.setattr(install.sys, "version_info", (3, 10, 1))
    monkeypatch.setattr(install.sys, "argv", ["install.py"])
    version = type("Version", (tuple,), {"major": 3, "minor": 10})((3, 10))
    monkeypatch.setattr(install.sys, "version_info", version)
    with pytest.raises(SystemExit):
        install.main()
    assert "Python 3.10: expected 3.11 or newer" in capsys.readouterr().err


def test_the_makefile_names_what_exists() -> None:
    for target in ("learn", "test", "lint", "soak", "notebooks", "exercises", "help"):
        run = subprocess.run(["make", "--dry-run", target, f"PYTHON={sys.executable}"], cwd=ROOT, capture_output=True,
                             text=True)
        assert run.returncode == 0, run.stderr
    help_text = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True).stdout
    assert "make learn" in help_text
    assert "make test" in help_text
