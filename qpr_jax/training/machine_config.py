"""Settings of processes, speed and memory, which change no result beyond rounding. Loads no JAX."""

from __future__ import annotations

from dataclasses import dataclass

from qpr_jax.training.declaration import setting


@dataclass(slots=True, kw_only=True)
class DistributedConfig:
    """Several processes that train together."""

    enabled: bool = setting(False, "train together with other processes", result=False)
    coordinator: str = setting(
        "", "HOST:PORT of process 0; empty: JAX finds it (SLURM, MPI, TPU pods)", result=False
    )
    num_processes: int = setting(0, "number of processes; 0: JAX finds it", min=0, result=False)
    process_id: int = setting(-1, "number of this process, from 0; -1: JAX finds it", result=False)
    timeout: int = setting(
        300, "seconds to wait for all processes at the start", min=1, result=False
    )
    heartbeat: int = setting(
        30, "seconds of silence after which a process counts as lost", min=1, result=False
    )


@dataclass(slots=True, kw_only=True)
class TuningConfig:
    """Constants of speed and memory; by default those of `qpr_jax/tuning.py` for the platform."""

    tile_rows: int = setting(
        0, "rows of the loss's N x N scores computed at a time; 0: by platform", min=0, result=False
    )
    encoder_scores: int = setting(
        0,
        "outputs of the convolution (positions times filters) held at a time; 0: by platform",
        min=0,
        result=False,
    )
    product_terms: int = setting(
        0, "partial sums of each dot product in the loss; 0: by platform", min=0, result=False
    )
    donate: str = setting(
        "auto",
        "whether a step writes the new state over the old one",
        choices=("auto", "yes", "no"),
        result=False,
    )
