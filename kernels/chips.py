"""What a block of threads may take on each chip that kernels are compiled for, and how many of them then fit at once.

An SM (a compute unit, on AMD) holds blocks until one of its resources is gone. The more warps are resident, the more
loads are in flight while others wait: that is what occupancy buys, and registers and shared memory are its price.

Figures: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; PTX ISA, tensor memory; for
gfx942 the AMD CDNA3 ISA guide and LLVM's AMDGPU backend. Scalar registers of gfx942 are left out: LLVM lets them hold
back one wave in eight at most.
"""

from __future__ import annotations

from dataclasses import dataclass

# an SM has four schedulers, each with a register file of its own: 16,384 registers for warps of 32 threads on NVIDIA,
# 32,768 for waves of 64 on CDNA3; either way 512 for each of a warp's lanes, handed out 8 at a time
SCHEDULERS = 4
REGISTERS_PER_LANE = 512
REGISTER_GRANULE = 8
MAX_THREADS = 1024  # in a block, on all five


@dataclass(frozen=True)
class Chip:
    """Limits of one SM. Memory in bytes; tensor memory, which only sm_100 has, in columns of 128 words."""

    name: str
    sold_as: str
    backend: str  # Triton's name: cuda or hip
    arch: int | str  # Triton's name within it
    warp_size: int
    max_warps: int
    max_blocks: int
    max_registers: int  # for one thread
    shared: int
    shared_per_block: int
    shared_reserved: int  # taken by the system for each block
    shared_granule: int
    tensor_columns: int = 0


CHIPS = {chip.name: chip for chip in (
    Chip("sm_80", "A100", "cuda", 80, 32, 64, 32, 255, 164 * 1024, 163 * 1024, 1024, 128),
    Chip("sm_89", "L40S, RTX 4090", "cuda", 89, 32, 48, 24, 255, 100 * 1024, 99 * 1024, 1024, 128),
    Chip("sm_90", "H100, H200", "cuda", 90, 32, 64, 32, 255, 228 * 1024, 227 * 1024, 1024, 128),
    Chip("sm_100", "B200", "cuda", 100, 32, 64, 32, 255, 228 * 1024, 227 * 1024, 1024, 128, tensor_columns=512),
    Chip("gfx942", "MI300X", "hip", "gfx942", 64, 32, 32, 512, 64 * 1024, 64 * 1024, 0, 512),
)}


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel that an SM holds at once, their warps, and the limit that allows no more."""

    blocks: int
    warps: int
    max_warps: int
    limit: str


def occupancy(chip: Chip, warps: int, registers: int, shared: int, tensor_columns: int = 0) -> Occupancy:
    """What fits on one SM of blocks of `warps` warps, each thread with `registers`, each block with `shared` bytes.

    Registers are handed out by scheduler: a warp's cannot straddle two. Where limits tie, all are named.
    """
    warps_by_registers = SCHEDULERS * (REGISTERS_PER_LANE // _round_up(max(1, registers), REGISTER_GRANULE))
    allowed = {"registers": warps_by_registers // warps}
    taken = _round_up(shared + chip.shared_reserved, chip.shared_granule)
    if taken:
        allowed["shared memory"] = chip.shared // taken
    if tensor_columns:
        allowed["tensor memory"] = chip.tensor_columns // tensor_columns
    allowed["warps"] = chip.max_warps // warps
    allowed["blocks"] = chip.max_blocks
    blocks = min(allowed.values())
    limit = " + ".join(name for name, count in allowed.items() if count == blocks)
    return Occupancy(blocks, blocks * warps, chip.max_warps, limit)


def excesses(chip: Chip, warps: int, registers: int, shared: int, tensor_columns: int = 0) -> list[str]:
    """What one block takes beyond the chip's limits, in words; empty when it can be launched."""
    asked = {"threads in a block": (warps * chip.warp_size, MAX_THREADS),
             "registers in a thread": (registers, chip.max_registers),
             "bytes of shared memory in a block": (shared, chip.shared_per_block),
             "columns of tensor memory": (tensor_columns, chip.tensor_columns)}
    over = [f"{took:,} {what}, of {most:,}" for what, (took, most) in asked.items() if took > most]
    if not over and occupancy(chip, warps, registers, shared, tensor_columns).blocks == 0:
        over = [f"{registers} registers for each of {warps * chip.warp_size} threads, more than an SM has"]
    return over


def _round_up(value: int, granule: int) -> int:
    return -(-value // granule) * granule
