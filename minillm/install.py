"""Create .venv and install minillm into it. The Makefile runs it before anything is installed: standard library only.

    python3 minillm/install.py --extra course

A stamp inside .venv, written last, says what was installed and from which pyproject.toml: with it in place there is
nothing to do, and a run that was interrupted is simply done again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"  # PyTorch's own index of CPU builds
INCLUDES = {"course": (), "dev": ("course",)}  # extras that another one brings along
SIZES = {
    "course": "JupyterLab, Triton and the libraries: about 390 MB",
    "dev": "everything for tests and lessons: about 420 MB",
}
OLDEST = (3, 11)


def say(text: str) -> None:
    """One line of what is happening; flushed, since pip writes to the same terminal."""
    print(f"minillm: {text}", flush=True)


def fail(text: str) -> None:
    """One line on stderr, exit 2."""
    print(f"minillm: {text}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def venv_python() -> Path:
    return VENV / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def in_venv(*arguments: str, quiet: bool = False) -> subprocess.CompletedProcess:
    """Run the environment's python; output goes to the terminal unless `quiet`."""
    return subprocess.run([str(venv_python()), *arguments], capture_output=quiet, text=True)


def fingerprint(torch: str) -> str:
    """What an installation depends on: when it changes, install again."""
    text = f"{(ROOT / 'pyproject.toml').read_text()}\n{torch}\n{sys.version_info[:2]}"
    return hashlib.sha256(text.encode()).hexdigest()


def stamp(extra: str) -> Path:
    return VENV / f"minillm-{extra}.stamp"


def is_installed(extra: str, wanted: str) -> bool:
    """Whether a finished installation brought `extra`, from the present pyproject.toml."""
    bringing = [name for name, brought in INCLUDES.items() if name == extra or extra in brought]
    return venv_python().exists() and any(
        stamp(name).exists() and stamp(name).read_text() == wanted for name in bringing)


def has_nvidia_driver() -> bool:
    return shutil.which("nvidia-smi") is not None or Path("/proc/driver/nvidia/version").exists()


def cpu_index_answers() -> bool:
    """Ask PyTorch's CPU index once, for five seconds at most."""
    try:
        with urllib.request.urlopen(f"{CPU_INDEX}/torch/", timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def plain_pip_would_take(torch: str) -> str:
    """'cpu', 'cuda' or 'nothing': the build that pip, as it is configured, would install."""
    found = in_venv("-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed",
                    "--report", "-", torch, quiet=True)
    try:
        metadata = json.loads(found.stdout)["install"][0]["metadata"]
    except (ValueError, LookupError):
        return "nothing"
    needs_cuda = any(r.startswith("nvidia-") for r in metadata.get("requires_dist", []))
    return "cuda" if needs_cuda else "cpu"


def install_torch(torch: str) -> None:
    """Install torch, preferring a CPU build where there is no NVIDIA driver; keep one that is there."""
    present = in_venv("-c", "import torch; print(torch.__version__)", quiet=True)
    if present.returncode == 0:
        say(f"torch {present.stdout.strip()} is in .venv already and is kept")
        return
    source: list[str] = []
    if sys.platform != "linux":
        say(f"installing {torch}: about 100 to 250 MB")
    elif has_nvidia_driver():
        say(f"installing {torch} with CUDA, since there is an NVIDIA driver: about 3 GB")
    elif plain_pip_would_take(torch) == "cpu":
        say(f"installing {torch}, a CPU build: 183 MB")
    elif cpu_index_answers():
        say(f"installing {torch} from PyTorch's index of CPU builds: about 200 MB")
        source = ["--index-url", CPU_INDEX]
    elif plain_pip_would_take(torch) == "cuda":
        say(f"warning: there is no NVIDIA driver here, but only the CUDA build of {torch} is to be had: about 3 GB of "
            "downloads, 5 GB on disk. To use another build, install it into .venv first, or set TORCH=...")
    else:
        fail(f"pip finds no {torch} for Python {sys.version_info.major}.{sys.version_info.minor}: is there a network? "
             "Expected a version that exists, e.g. make learn TORCH='torch>=2.11'")
    if in_venv("-m", "pip", "install", "--disable-pip-version-check", "--quiet", *source, torch).returncode:
        fail(f"pip could not install {torch}; its own message stands above. Nothing is left half done: run make again")


def create_venv() -> None:
    """A .venv with a working pip, made anew if what is there is broken or of another Python."""
    if venv_python().exists():
        asked = in_venv("-c", "import pip, sys; print(sys.version_info[:2] >= (3, 11))", quiet=True)
        if asked.returncode == 0 and asked.stdout.strip() == "True":
            return
        say(".venv is broken or too old, and is made anew")
        shutil.rmtree(VENV)
    say(f"creating .venv with Python {sys.version_info.major}.{sys.version_info.minor}")
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True)
    if made.returncode:
        shutil.rmtree(VENV, ignore_errors=True)
        reason = (made.stdout + made.stderr).strip().splitlines()[-1:]
        fail(f"could not create .venv ({' '.join(reason)}): expected Python's venv module; on Debian and Ubuntu "
             "it is the package python3-venv")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python3 minillm/install.py", description="Create .venv and install minillm.")
    parser.add_argument("--extra", choices=INCLUDES, default="course", help="course: what a reader needs; dev: all")
    parser.add_argument("--torch", default="torch==2.13.0", help="the torch to install when none is there")
    arguments = parser.parse_args()
    if sys.version_info < OLDEST:
        fail(f"this is Python {sys.version_info.major}.{sys.version_info.minor}: expected 3.11 or newer")
    wanted = fingerprint(arguments.torch)
    if is_installed(arguments.extra, wanted):
        return
    create_venv()
    say("downloaded once: torch (183 MB as a CPU build), the model (93 MB),")
    say(SIZES[arguments.extra])
    install_torch(arguments.torch)
    say(f"installing minillm with its {arguments.extra} extra: {SIZES[arguments.extra]}")
    if in_venv("-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--editable",
               f"{ROOT}[{arguments.extra}]").returncode:
        fail("pip could not install minillm; its own message stands above. Is there a network? Run make again to go on")
    stamp(arguments.extra).write_text(wanted)


if __name__ == "__main__":
    main()
