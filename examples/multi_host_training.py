"""Train with several processes, as several hosts would: here all are on this machine.

    pip install '.[train]' -c constraints.txt
    python examples/multi_host_training.py runs/hosts 2

On real hosts start one process on each, with the command that this prints, and change

- RUN: a folder that all hosts see (NFS, Lustre, ...); process 0 writes the model and the report;
- JAX_COORDINATOR_ADDRESS: the address of process 0 that the others reach, as 10.0.0.1:12355;
- JAX_PROCESS_ID: 0 on the first host, then 1, 2, ...; under SLURM or MPI and on a TPU slice leave
  out the three variables;
- `--config`: `quora_best`, and PAIRS after RUN, at a path that all hosts have;
- leave out XLA_FLAGS, which makes two devices of one CPU; a host's GPUs or TPUs are found.

A host that is lost ends the others within 30 seconds. The same commands resume the
last checkpoint, on any number of hosts whose devices divide `batch_size`.
"""

import os
import shlex
import socket
import subprocess
import sys


def variables(coordinator: str, count: int, process: int) -> dict[str, str]:
    """The environment variables of one host."""
    return {
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(process),
    }


def main(run: str, count: int) -> int:
    """Start all processes, wait for them, and return the worst exit status."""
    with socket.socket() as free:  # a port that nobody has now
        free.bind(("localhost", 0))
        coordinator = f"localhost:{free.getsockname()[1]}"
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=2"
    words = ["qpr", "train", run, "--config", "synthetic_sdml:smoke", "--set", "distributed=true"]
    hosts = []
    for process in range(count):
        ours = variables(coordinator, count, process)
        shown = [f"{name}={value}" for name, value in ours.items()]
        print(*shown, shlex.join(words), flush=True)
        command = [sys.executable, "-m", "qpr_jax.cli.main", *words[1:]]
        environment = os.environ | ours | {"XLA_FLAGS": flags}
        hosts.append(subprocess.Popen(command, env=environment))
    return max(abs(host.wait()) for host in hosts)


if __name__ == "__main__":
    run, count = sys.argv[1:] if sys.argv[2:] else ("runs/hosts", "2")
    sys.exit(main(run, int(count)))
