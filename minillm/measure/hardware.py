"""What a machine can move and compute: datasheet peaks of known accelerators, measured peaks of this one.

Both kinds have `.name`, `.memory_bytes`, `.bandwidth` (bytes/s) and `.peak_flops` (dtype -> FLOP/s), so a prediction
takes either. Datasheet peaks are dense: sheets often print the doubled figure of 2:4 sparsity larger.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

GB = 1e9
GIB = 2**30
TFLOPS = 1e12


def home() -> Path:
    """Where minillm keeps models and measurements: $MINILLM_HOME, or minillm in the user's cache folder."""
    chosen = os.environ.get("MINILLM_HOME")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "minillm"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "minillm"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "minillm"


def best_device() -> Any:
    """The torch.device to run on: CUDA when there is one, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Accelerator:
    """An accelerator by its datasheet: dense peaks in FLOP/s (OP/s for int8), memory in bytes, bandwidth in bytes/s."""

    name: str
    memory_bytes: float
    bandwidth: float
    peak_flops: dict[str, float]
    source: str


def _sheet(name: str, memory_gb: float, bandwidth_gb: float, source: str, **tflops: float) -> Accelerator:
    return Accelerator(name, memory_gb * GB, bandwidth_gb * GB, {k: v * TFLOPS for k, v in tflops.items()}, source)


DATASHEETS: dict[str, Accelerator] = {
    "t4": _sheet("NVIDIA T4", 16, 320, "NVIDIA T4 datasheet", float32=8.1, float16=65, int8=130),
    "l4": _sheet("NVIDIA L4", 24, 300, "NVIDIA L4 datasheet, sparse figures halved",
                 float32=30.3, tf32=60, float16=121, bfloat16=121, float8=242.5, int8=242.5),
    "a10": _sheet("NVIDIA A10", 24, 600, "NVIDIA A10 datasheet",
                  float32=31.2, tf32=62.5, float16=125, bfloat16=125, int8=250),
    "a100": _sheet("NVIDIA A100 80GB SXM", 80, 2039, "NVIDIA A100 datasheet",
                   float32=19.5, tf32=156, float16=312, bfloat16=312, int8=624),
    "h100": _sheet("NVIDIA H100 SXM", 80, 3350, "NVIDIA H100 datasheet, sparse figures halved",
                   float32=67, tf32=494.5, float16=989, bfloat16=989, float8=1979, int8=1979),
    "h200": _sheet("NVIDIA H200 SXM", 141, 4800, "NVIDIA H200 datasheet, sparse figures halved",
                   float32=67, tf32=494.5, float16=989, bfloat16=989, float8=1979, int8=1979),
    "b200": _sheet("NVIDIA B200 (HGX)", 180, 7700, "NVIDIA Blackwell HGX B200 datasheet, sparse figures halved",
                   float32=75, tf32=1100, float16=2250, bfloat16=2250, float8=4500, int8=4500),
    "rtx3090": _sheet("NVIDIA RTX 3090", 24, 936, "NVIDIA GA102 whitepaper (FP32 accumulation)",
                      float32=35.6, tf32=35.6, float16=71, bfloat16=71, int8=284),
    "rtx4090": _sheet("NVIDIA RTX 4090", 24, 1008, "NVIDIA Ada whitepaper (FP32 accumulation)",
                      float32=82.6, tf32=82.6, float16=165.2, bfloat16=165.2, float8=330.3, int8=660.6),
    "mi300x": _sheet("AMD MI300X", 192, 5300, "AMD Instinct MI300X data sheet",
                     float32=163.4, tf32=653.7, float16=1307.4, bfloat16=1307.4, float8=2614.9, int8=2614.9),
}


@dataclass(frozen=True)
class Machine:
    """This machine, measured. Bandwidths in bytes/s, peaks in FLOP/s; a copy counts bytes read plus bytes written."""

    name: str
    device: str
    threads: int
    memory_bytes: float
    copy_bandwidth: float
    read_bandwidth: float
    peak_flops: dict[str, float]
    torch_version: str
    date: str
    source: str = field(default="measured", repr=False)

    @property
    def bandwidth(self) -> float:
        """The one a decode step lives on: reading."""
        return self.read_bandwidth


def ridge(hardware: Accelerator | Machine, dtype: str) -> float:
    """FLOP per byte at which the two roofs meet: below it bandwidth bounds, above it arithmetic does."""
    return peak(hardware, dtype) / hardware.bandwidth


def peak(hardware: Accelerator | Machine, dtype: str) -> float:
    """Peak FLOP/s of `dtype`. Raises ValueError when the hardware has no figure for it."""
    if dtype not in hardware.peak_flops:
        raise ValueError(f"{hardware.name} has no peak for {dtype!r}: expected one of {', '.join(hardware.peak_flops)}")
    return hardware.peak_flops[dtype]


def device_name(device: Any = None) -> str:
    """The name of the processor or the GPU, e.g. 'Intel(R) Xeon(R) Processor' or 'NVIDIA H200'."""
    import torch

    device = torch.device(device) if device is not None else best_device()
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("model name", "Model")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def memory_bytes(device: Any = None) -> float:
    """Bytes of the GPU's memory, or of the machine's physical memory for the CPU."""
    import torch

    device = torch.device(device) if device is not None else best_device()
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def measure_machine(device: Any = None, refresh: bool = False) -> Machine:
    """Measure bandwidth and matrix-product peaks of `device` (default: the best), or read them from the cache.

    Takes about ten seconds the first time; afterwards it is read from home()/machines, one file for each device, thread
    count and torch version. An unreadable file is measured again. Raises ValueError if it cannot be kept there.
    """
    import torch

    device = torch.device(device) if device is not None else best_device()
    name, threads = device_name(device), torch.get_num_threads()
    slug = "".join(c if c.isalnum() else "-" for c in f"{name}-{device.type}-{threads}-{torch.__version__}")
    path = home() / "machines" / f"{slug}.json"
    if not refresh:
        cached = _read(path)
        if cached is not None:
            return cached
    machine = Machine(
        name=name, device=device.type, threads=threads, memory_bytes=memory_bytes(device),
        copy_bandwidth=_copy_bandwidth(device), read_bandwidth=_read_bandwidth(device),
        peak_flops=_gemm_peaks(device), torch_version=torch.__version__, date=time.strftime("%Y-%m-%d"))
    _write(path, machine)
    return machine


def _read(path: Path) -> Machine | None:
    try:
        data = json.loads(path.read_text())
        machine = Machine(**data)
        figures = [machine.copy_bandwidth, machine.read_bandwidth, *machine.peak_flops.values()]
        return machine if all(isinstance(f, float) and f > 0 for f in figures) and machine.peak_flops else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _write(path: Path, machine: Machine) -> None:
    part = path.with_suffix(f".{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(asdict(machine), indent=2) + "\n")
        part.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            part.unlink()
        raise ValueError(f"cannot keep the measurement in {path.parent}: {error.strerror}; expected a folder that can "
                         "be written, see MINILLM_HOME") from None


def _working_set(device: Any) -> int:
    """Bytes to stream through: far more than any last-level cache, far less than the memory."""
    return int(min(2 * GIB if device.type == "cuda" else GIB // 2, memory_bytes(device) / 8))


def _copy_bandwidth(device: Any) -> float:
    """Bytes read plus bytes written per second by a large copy; the best of several, as for STREAM (McCalpin 1995)."""
    import torch

    from minillm.measure.timing import time_call

    source = torch.ones(_working_set(device) // 4, device=device)  # float32
    target = torch.zeros_like(source)
    timing = time_call(lambda: target.copy_(source), device, warmup=1, repeats=5)
    return 2 * source.nbytes / min(timing.samples)


def _read_bandwidth(device: Any) -> float:
    """Bytes read per second as decode reads them: a matrix-vector product whose matrix does not fit any cache."""
    import torch

    from minillm.measure.timing import time_call

    columns = 4096
    matrix = torch.ones(_working_set(device) // 4 // columns, columns, device=device)  # float32
    vector = torch.ones(columns, device=device)
    # Three ways to read it all; the machine's bandwidth is the best that any of them sees.
    reads = (lambda: torch.mv(matrix, vector), lambda: matrix.sum(), lambda: matrix.amax())
    best = min(min(time_call(read, device, warmup=1, repeats=4).samples) for read in reads)
    return matrix.nbytes / best


def _gemm_peaks(device: Any) -> dict[str, float]:
    """FLOP/s of a large square matrix product in each dtype; the best of several sizes.

    A dtype that the processor only emulates is measured on a small product and reported as it is: slow.
    """
    import torch

    from minillm.measure.timing import time_call

    peaks = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        best = 0.0
        for size in (2048, 4096, 8192) if device.type == "cuda" else (256, 1024, 2048):
            a = torch.ones(size, size, device=device, dtype=dtype)
            timing = time_call(lambda a=a: a @ a, device, warmup=1, repeats=4)
            best = max(best, 2 * size**3 / min(timing.samples))
            if 8 * min(timing.samples) > 2:  # the next size would take seconds
                break
        peaks[str(dtype).removeprefix("torch.")] = best
    return peaks
