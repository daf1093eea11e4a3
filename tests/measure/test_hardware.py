"""This machine's measurement: plausible, cached, and robust against a broken cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minillm.measure import hardware
from minillm.measure.hardware import DATASHEETS, home, measure_machine


@pytest.fixture
def quick(tmp_path: Path, monkeypatch) -> dict[str, int]:
    """A home of its own, and measurements that count themselves instead of taking seconds."""
    calls = {"n": 0}

    def fake_peaks(device) -> dict[str, float]:
        calls["n"] += 1
        return {"float32": 1e11 * calls["n"]}

    monkeypatch.setenv("MINILLM_HOME", str(tmp_path))
    monkeypatch.setattr(hardware, "_gemm_peaks", fake_peaks)
    monkeypatch.setattr(hardware, "_working_set", lambda device: 2**20)
    return calls


def test_a_machine_is_measured_once_and_read_afterwards(quick) -> None:
    first = measure_machine("cpu")
    assert measure_machine("cpu") == first
    assert quick["n"] == 1
    assert measure_machine("cpu", refresh=True).peak_flops["float32"] == 2e11
    assert first.read_bandwidth > 0
    assert first.copy_bandwidth > 0
    assert first.bandwidth == first.read_bandwidth


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"name": "x"}', "null"])
def test_a_damaged_measurement_is_measured_again(quick, damage: str) -> None:
    measure_machine("cpu")
    (path,) = (home() / "machines").glob("*.json")
    path.write_text(damage)
    measure_machine("cpu")
    assert quick["n"] == 2
    assert json.loads(path.read_text())["peak_flops"] == {"float32": 2e11}
    assert [p.suffix for p in path.parent.iterdir()] == [".json"]


def test_a_home_that_cannot_be_written_is_one_line(quick, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="cannot keep the measurement in .*MINILLM_HOME") as error:
        measure_machine("cpu")
    assert "\n" not in str(error.value)


def test_a_measurement_without_figures_is_measured_again(quick) -> None:
    measure_machine("cpu")
    (path,) = (home() / "machines").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "read_bandwidth": 0.0}))
    measure_machine("cpu")
    assert quick["n"] == 2


def test_the_real_measurement_is_of_a_real_machine(monkeypatch) -> None:
    """No thresholds of speed: only that each figure is a rate, and that reading is not slower than half a copy's."""
    monkeypatch.setattr(hardware, "_working_set", lambda device: 2**26)
    assert hardware._read_bandwidth("cpu") > 1e8
    assert hardware._copy_bandwidth("cpu") > 1e8


def test_home_follows_the_variable_and_defaults_to_the_cache_folder(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINILLM_HOME", str(tmp_path / "here"))
    assert home() == tmp_path / "here"
    monkeypatch.delenv("MINILLM_HOME")
    monkeypatch.setattr(hardware.sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert home() == tmp_path / "minillm"


def test_datasheets_cover_ten_accelerators_with_a_source_each() -> None:
    assert len(DATASHEETS) == 10
    for sheet in DATASHEETS.values():
        assert sheet.source
        assert "float16" in sheet.peak_flops
        assert 1e11 < sheet.bandwidth < 1e13
        assert sheet.memory_bytes >= 16e9
        rates = [sheet.peak_flops[d] for d in ("float32", "tf32", "float16", "float8") if d in sheet.peak_flops]
        assert rates == sorted(rates)
