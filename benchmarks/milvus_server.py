"""A Milvus server of the package `milvus`, for as long as another process lives.

    python -m benchmarks.milvus_server FOLDER ADDRESS PARENT

Writes HOST:PORT to the file ADDRESS when it answers.
"""

import os
import pathlib
import socket
import sys
import time

from milvus import MilvusServer, MilvusServerConfig, _initialize_data_files

from qpr_jax.files import user_cache


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def bind(port):
    """A socket that listens at a port, which a server that was killed may have had; None: taken."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
        listening.listen()
    except OSError:
        listening.close()
        return None
    return listening


def make_server(folder, port=None, **settings):
    """A server that is not started yet; on `port`, or any one. settings: dots are written `__`."""
    folder = pathlib.Path(folder).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    unpacked = user_cache() / "milvus-server"  # the package has it compressed, for ten seconds
    _initialize_data_files(str(unpacked))
    if not (folder / "bin").exists():
        (folder / "bin").symlink_to(unpacked / "bin")
    config = MilvusServerConfig(data_dir=str(folder))
    config.try_bind_port = bind
    names = [name for name in config.configurable_items if name.endswith("_port")]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    config.update(**(ports | ({"proxy_port": port} if port else {})))
    server = MilvusServer(config)
    server.webservice_port, client, peer = free_ports(3)
    # Else etcd, which it has inside, listens at 2379 and 2380, whatever the server's ports are.
    urls = {"client": f"http://127.0.0.1:{client}", "peer": f"http://127.0.0.1:{peer}"}
    lines = [f"listen-{name}-urls: {url}" for name, url in urls.items()]
    lines += [f"advertise-client-urls: {urls['client']}"]
    lines += [
        f"initial-advertise-peer-urls: {urls['peer']}",
        f"initial-cluster: default={urls['peer']}",
    ]
    (folder / "etcd.yaml").write_text("\n".join(lines))
    os.environ["ETCD_CONFIG_PATH"] = str(folder / "etcd.yaml")
    for name, value in settings.items():
        config.set(name.replace("__", "."), value)
    return server


def main(folder, address, parent):
    server = make_server(folder)
    server.start()  # within three minutes
    part = pathlib.Path(f"{address}.part")
    part.write_text(f"127.0.0.1:{server.listen_port}")
    part.rename(address)
    try:
        while pathlib.Path(f"/proc/{parent}").exists():
            time.sleep(0.5)
    finally:
        server.server_proc.kill()
        os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
