"""A Milvus server of the package `milvus`, for as long as another process lives.

    python -m tests.milvus.server FOLDER ADDRESS PARENT

Writes HOST:PORT to the file ADDRESS when it answers.
"""

import os
import pathlib
import sys
import time

from milvus import MilvusServer, MilvusServerConfig

from qpr_jax.files import user_cache
from tests.runs import free_ports


def start_server(folder):
    """Start a server, within three minutes."""
    unpacked = user_cache() / "milvus-server" / "bin"  # unpacking takes ten seconds
    unpacked.mkdir(parents=True, exist_ok=True)
    folder.mkdir()
    (folder / "bin").symlink_to(unpacked)
    config = MilvusServerConfig(data_dir=str(folder))
    names = [name for name in config.configurable_items if name.endswith("_port")]
    config.update(**dict(zip(names, free_ports(len(names)), strict=True)))
    server = MilvusServer(config)
    server.webservice_port, *ports = free_ports(3)
    client, peer = (f"http://127.0.0.1:{port}" for port in ports)
    (folder / "etcd.yaml").write_text(  # the etcd inside would listen at 2379 and 2380
        f"listen-client-urls: {client}\nadvertise-client-urls: {client}\n"
        f"listen-peer-urls: {peer}\ninitial-advertise-peer-urls: {peer}\n"
        f"initial-cluster: default={peer}\n"
    )
    os.environ["ETCD_CONFIG_PATH"] = str(folder / "etcd.yaml")
    server.start()
    return server


if __name__ == "__main__":
    folder, address, parent = map(pathlib.Path, sys.argv[1:])
    running = start_server(folder)
    part = address.with_suffix(".part")
    part.write_text(f"127.0.0.1:{running.listen_port}")
    part.rename(address)
    while pathlib.Path("/proc", parent).exists():
        time.sleep(0.5)
    running.server_proc.kill()
