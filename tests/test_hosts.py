"""Two hosts with their own addresses, each a network namespace of Linux, train together."""

import os
import secrets
import subprocess

import pytest

from qpr_jax.training.metrics import read_json_lines
from tests.test_distributed import COMMAND, ROOT, ended, wait_for_step
from tests.xla import QUICK_XLA

pytestmark = pytest.mark.slow
PORT = 29_871  # of the namespace's own


def ip(*words):
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


class Host:
    """A network namespace with an address, whose own name leads to it."""

    def __init__(self, name, address, hosts):
        self.name, self.address, self.hosts = name, address, hosts

    def start(self, command, **variables):
        """Start a program on the host, where /etc/hosts is `self.hosts`."""
        inside = f"mount --bind {self.hosts} /etc/hosts && exec {' '.join(command)}"
        flags = f"{QUICK_XLA} --xla_force_host_platform_device_count=2"
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", inside],
            env=os.environ | {"XLA_FLAGS": flags, "GLIBC_TUNABLES": ""} | variables,
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def hosts(tmp_path):
    """Two hosts that reach each other, and nothing else."""
    tag = secrets.token_hex(3)
    names, links = [f"qpr{i}{tag}" for i in range(2)], [f"qv{i}{tag}" for i in range(2)]
    addresses = ["10.213.77.1", "10.213.77.2"]
    own_name = os.uname().nodename
    try:
        made = [ip("netns", "add", name) for name in names]
        made.append(ip("link", "add", links[0], "type", "veth", "peer", "name", links[1]))
        if any(done.returncode for done in made):
            pytest.skip(f"needs the right to make network namespaces: {made[0].stderr.strip()}")
        found = []
        for name, link, address in zip(names, links, addresses, strict=True):
            assert not ip("link", "set", link, "netns", name).returncode
            assert not ip("-n", name, "addr", "add", f"{address}/24", "dev", link).returncode
            for device in ("lo", link):
                assert not ip("-n", name, "link", "set", device, "up").returncode
            file = tmp_path / f"hosts-{name}"
            # The transport of JAX on CPUs looks up the host's own name.
            file.write_text(f"127.0.0.1 localhost\n{address} {own_name}\n")
            found.append(Host(name, address, file))
        yield found
    finally:
        for name in names:
            ip("netns", "del", name)


def train(hosts, workdir, *flags):
    command = [*COMMAND, f"--workdir={workdir}", "--config.distributed=True", *flags]
    return [
        host.start(
            command,
            JAX_COORDINATOR_ADDRESS=f"{hosts[0].address}:{PORT}",
            JAX_NUM_PROCESSES="2",
            JAX_PROCESS_ID=str(number),
        )
        for number, host in enumerate(hosts)
    ]


def test_a_training_goes_on_after_a_host_was_killed(hosts, tmp_path):
    workdir, steps = tmp_path / "run", ("--config.max_steps=60", "--config.checkpoint_every=5")
    processes = train(hosts, workdir, *steps)
    wait_for_step(workdir, 12, processes)
    processes[1].kill()
    statuses, errors = ended(processes)
    assert 0 not in statuses
    before = read_json_lines(workdir / "metrics.jsonl")[-1]["step"]
    assert before < 60
    statuses, errors = ended(
        train(hosts, workdir, "--config.max_steps=60", "--config.checkpoint_every=5")
    )
    assert statuses == [0, 0], errors
    assert "resuming" in errors[0]
    assert [row["step"] for row in read_json_lines(workdir / "metrics.jsonl")][-1] == 60
